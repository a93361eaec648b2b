"""The rows that a run writes to its folder: those of checkpoints wait in a log, and become parts when they are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import Extent, Rows, append_rows, read_all, read_rows
from raydpzv.records.write_ahead_log import WriteAheadLog

_LONGEST_LOG = 1 << 24
"""Bytes of rows in a log before they become parts, few and large: parts take four times as long to write and read."""


class FolderRows:
    """Writes rows, and knows what it has written.

    where: the folder of the parts; extents: what it has of each type of which there are rows; log: of rows in no part
    yet; held: these rows. What cannot be written raises OSError.
    """

    def __init__(
        self,
        run: Path,
        where: str,
        extents: Mapping[str, Extent] | None = None,
        log: WriteAheadLog | None = None,
        held: Rows | None = None,
    ) -> None:
        self._run, self.log = run, log or WriteAheadLog(run)
        self.where = where
        self.extents: dict[str, Extent] = dict(extents or {})
        self.counts = Counter({name: extent.rows for name, extent in self.extents.items()})
        """Rows of each type, those of the log among them."""
        self._kept: list[Rows] = []  # the last ones of the parts, in memory
        self._unkept: dict[str, Extent] = {}  # what the parts held before these
        self._count(held or {})

    def hold(self, rows: Rows) -> None:
        """Add rows that a checkpoint follows, with which they are written to the log.

        When they are many, or others are added, they become parts: these are larger and fewer than if each checkpoint
        made its own.
        """
        # `nbytes` takes 70 times as long
        size = sum(table.get_total_buffer_size() for table in rows.values() if table.num_rows)
        if self.log.size + size > _LONGEST_LOG:
            self.append(rows)
            return
        self.log.add(rows)
        self._count(rows)

    def append(self, rows: Rows, *, keep: bool = False) -> None:
        """Add rows, and all that were in a checkpoint alone.

        keep: in memory, too, so that `written` need not read them back; for the last ones of a run. Types that cannot
        be written are added with the next rows.
        """
        self.log.add(rows)
        whole = self.log.rows()
        if keep:  # what reads them looks at each piece of a column
            whole = {name: table.combine_chunks() for name, table in whole.items()}
        self.log.clear()
        kept, self._kept = self._kept, []  # where it fails, parts tell what there is
        if not kept:
            self._unkept = dict(self.extents)
        before = dict(self.extents)
        self._count(rows)
        try:
            append_rows(self._run, whole, self.where, self.extents)
        except BaseException:
            self.log.add({name: whole[name] for name in whole if self.extents.get(name) == before.get(name)})
            raise
        if keep:
            self._kept = [*kept, whole]

    def so_far(self, name: str) -> pa.Table:
        """Return the rows of one type, those in no part yet among them."""
        parts, rows = read_rows(self._run, name, self.where), self.log.rows()
        return pa.concat_tables([parts, rows[name]]) if name in rows else parts

    def written(self) -> Rows:
        """Return the rows of the parts."""
        if not self._kept:
            return read_all(self._run, self.where)
        return {name: self._with_kept(name) for name in SCHEMAS}

    def _with_kept(self, name: str) -> pa.Table:
        parts = self._unkept.get(name, Extent()).parts
        kept = [rows[name] for rows in self._kept if name in rows]
        return pa.concat_tables([read_rows(self._run, name, self.where, first=parts), *kept])

    def _count(self, rows: Rows) -> None:
        self.counts.update({name: table.num_rows for name, table in rows.items()})
