import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from raydpzv.errors import DataError
from tests.helpers.loading import KEY, get, refusal

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_arrays() -> dict[str, np.ndarray]:
    generator = KEY.generator()
    return {
        IDX[0]: generator.integers(0, 256, (30, 28, 28), np.uint8),
        IDX[1]: np.arange(30, dtype=np.uint8) % 10,
        IDX[2]: generator.integers(0, 256, (20, 28, 28), np.uint8),
        IDX[3]: np.arange(20, dtype=np.uint8)[::-1] % 10,
    }


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    for name, array in idx_arrays().items():
        (tmp_path / name).write_bytes(idx_bytes(array))
    return tmp_path


@pytest.mark.parametrize("form", ["plain", "gz", "dotted", "unpacked.gz"])
def test_idx_in_all_its_forms(tmp_path, form):
    arrays = idx_arrays()
    for name, array in arrays.items():
        data = idx_bytes(array)
        name = name.replace("-idx", ".idx") if form == "dotted" else name
        name = name + ".gz" if form.endswith("gz") else name
        (tmp_path / name).write_bytes(gzip.compress(data) if form == "gz" else data)
    split = get("fashion_mnist", tmp_path)
    assert split.train.x.shape == (30, 1, 28, 28)
    np.testing.assert_array_equal(np.rint(split.train.x[:, 0] * 255), arrays[IDX[0]])
    np.testing.assert_array_equal(np.rint(split.test.x[:, 0] * 255), arrays[IDX[2]])
    np.testing.assert_array_equal(split.train.y, arrays[IDX[1]])
    np.testing.assert_array_equal(split.test.y, arrays[IDX[3]])
    assert split.train.classes == 10


def test_missing_idx_files_are_named_with_folder_contents_and_home(mnist):
    (mnist / IDX[2]).unlink()
    wanted = (r"t10k-images-idx3-ubyte\[\.gz\]", mnist.name, IDX[3], "LeCun, Cortes and Burges")
    with refusal(DataError, *wanted) as got:
        get("mnist", mnist)
    assert "train-images-idx3-ubyte[.gz]" not in str(got.value), "what is there is not missing"


def test_a_folder_that_is_absent_empty_or_a_file(tmp_path):
    with refusal(DataError, "the folder does not exist"):
        get("mnist", tmp_path / "nowhere")
    with refusal(DataError, "it holds nothing", "Zalando"):
        get("fashion_mnist", tmp_path)
    (tmp_path / "file").write_text("")
    with refusal(DataError, "a file, not a folder"):
        get("cifar10", tmp_path / "file")


def test_a_long_folder_listing_is_cut(tmp_path):
    for i in range(9):
        (tmp_path / f"part{i}").write_text("")
    with refusal(DataError, "part5 and 3 more") as got:
        get("mnist", tmp_path)
    assert "part6" not in str(got.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[:-1], "promises .30, 28, 28., that is 23520 bytes, and 23519 follow"),
        (lambda data: data + b"x", "and 23521 follow"),
        (lambda data: b"\0\0\x0d\x03" + data[4:], "begins with 00000d03.*00000803"),
        (lambda data: b"\0\0\x08\x01" + data[4:], "begins with 00000801"),
        (lambda data: data[:10], "IDX header of 16 bytes"),
        (lambda data: b"", "begins with nothing"),
        (lambda data: data[:4] + b"\xff" * 12 + data[16:], "promises .4294967295"),
        (lambda data: gzip.compress(data)[:-200], "gzip data is damaged or cut off"),
        (lambda data: gzip.compress(data)[:-6], "gzip data is damaged or cut off"),
        (
            lambda data: data[:4] + struct.pack(">3I", 2**31, 2**31, 4),
            "promises .2147483648, .*and 0 follow",
        ),
        (
            lambda data: gzip.compress(data)[:10] + b"\xff" + gzip.compress(data)[11:],
            "invalid block type",
        ),
        (
            lambda data: gzip.compress(data)[:500] + b"\xff" * 50 + gzip.compress(data)[550:],
            "gzip data",
        ),
        (lambda data: b"\x1f\x8bnonsense", "gzip data"),
    ],
)
def test_a_spoilt_idx_file_is_refused(mnist, spoil, words):
    path = mnist / IDX[0]
    path.write_bytes(spoil(path.read_bytes()))
    with refusal(DataError, IDX[0], words, "get it again from the MNIST database"):
        get("mnist", mnist)


def test_idx_files_that_do_not_belong_together(mnist):
    (mnist / IDX[1]).write_bytes(idx_bytes(np.zeros(29, np.uint8)))
    with refusal(DataError, "30 images", "29 labels"):
        get("mnist", mnist)
    (mnist / IDX[1]).write_bytes(idx_bytes(np.full(30, 10, np.uint8)))
    with refusal(DataError, "label 10 in row 0 "):
        get("mnist", mnist)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar_planes_are_red_green_blue(tmp_path, inner):
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(CIFAR):
        record = bytes([i]) + bytes([255]) * 1024 + bytes([51]) * 1024 + bytes(1023) + bytes([i])
        (folder / name).write_bytes(record * 2)
    split = get("cifar10", tmp_path)
    assert split.train.x.shape == (10, 3, 32, 32)
    np.testing.assert_array_equal(split.train.y, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    np.testing.assert_array_equal(split.test.y, [5, 5])
    np.testing.assert_allclose(split.train.x[:, :, 0, 0], [[1, 0.2, 0]] * 10, rtol=1e-6)
    assert split.test.x[0, 2, 31, 31] * 255 == pytest.approx(5)


def test_cifar_files_that_are_missing_or_cut_off(tmp_path):
    for name in CIFAR[:4]:
        (tmp_path / name).write_bytes(bytes(3073))
    with refusal(DataError, "data_batch_5.bin, test_batch.bin in the folder", "Krizhevsky"):
        get("cifar10", tmp_path)
    for name in CIFAR[4:]:
        (tmp_path / name).write_bytes(bytes(3073))
    for length in (0, 3072, 10000):
        (tmp_path / CIFAR[3]).write_bytes(bytes(length))
        with refusal(
            DataError, "data_batch_4.bin", f"{length} bytes are not whole records of 3073"
        ):
            get("cifar10", tmp_path)
