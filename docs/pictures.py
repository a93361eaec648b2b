"""Make the pictures of `docs/concepts.md` by the commands and programs on that page: `python
docs/pictures.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("concepts.md")


def main() -> None:
    """Run the page's blocks in an empty folder, then copy each picture that the page shows out of
    it.
    """
    text = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for language, block in re.findall(r"(?ms)^```(sh|python)\n(.*?)^```", text):
            words = ["bash", "-e"] if language == "sh" else [sys.executable, "-"]
            subprocess.run(words, input=block, text=True, cwd=folder, check=True)
        for shown in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            to = PAGE.parent / shown
            to.parent.mkdir(exist_ok=True)
            (made,) = Path(folder).rglob(to.name)
            shutil.copyfile(made, to)
            print(to.relative_to(PAGE.parent))


if __name__ == "__main__":
    main()
