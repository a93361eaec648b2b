import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.privacy.integer_release import GRID, IntegerRelease, integer_sum
from raydpzv.privacy.mechanisms import clip_two_sided
from raydpzv.timetravel.clips import cut_by


def test_a_cut_slope_is_one_that_the_clip_changes() -> None:
    torch = pytest.importorskip("torch")
    slopes_B = (Key(3) / "slopes").generator().normal(0, 2, 200).astype(np.float32)
    clipped, _ = clip_two_sided(torch.from_numpy(slopes_B), 1.5)
    changed = clipped.numpy() != slopes_B
    np.testing.assert_array_equal(cut_by(1.5, None)(slopes_B[None].astype(np.float64)), changed)
    assert 0 < changed.sum() < 200


@pytest.mark.parametrize("over", ["vector", "scalar"])
def test_a_cut_vector_is_one_that_grows_no_more(over: str) -> None:
    slopes_PB = (Key(4) / over).generator().normal(0, 1, (3, 60))
    release = IntegerRelease(1.2, 3, 1.0, 60, over)  # type: ignore[arg-type]
    cut = cut_by(1.2, release)(slopes_PB)
    for b in range(60):
        one, large = (
            integer_sum(part.astype(np.float32), limit=release.limit, over=over)[0]  # type: ignore[arg-type]
            for part in (slopes_PB[:, [b]], 1.5 * slopes_PB[:, [b]])
        )
        # 1.5 times as large, but for what is cut to whole numbers
        free = np.abs(large - 1.5 * one).max() <= 3
        if np.linalg.norm(1.5 * one) < 0.9 * GRID / np.sqrt(3):
            assert free
        assert not (cut[b] and free)
    assert 0 < cut.sum() < 60
