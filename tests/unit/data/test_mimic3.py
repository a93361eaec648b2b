import csv

import pytest

from raydpzv.data.mimic3 import HOURS, VARIABLES
from raydpzv.errors import DataError
from tests.helpers.loading import get

HEAD = ["Hours", *VARIABLES]


def write_stay(path, measured):
    """measured: hours to {variable: text}."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD)
        writer.writeheader()
        for hours, values in measured:
            writer.writerow({"Hours": hours, **values})


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 6), ("test", 4)):
        (tmp_path / part).mkdir()
        lines = ["stay,y_true"]
        for i in range(count):
            name = f"{i}_episode1_timeseries.csv"
            measured = [(0.5, {"Heart Rate": f"{60 + i}"}), (3.25, {"Glucose": "200.5"})]
            write_stay(tmp_path / part / name, measured)
            lines.append(f"{name},{i % 2}")
        (tmp_path / part / "listfile.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def stay(folder, measured):
    write_stay(folder / "train" / "0_episode1_timeseries.csv", measured)
    return get("mimic3", folder).train.x[0]


def column(name):
    return list(VARIABLES).index(name)


def test_both_parts_are_read_with_their_labels(folder):
    split = get("mimic3", folder)
    assert split.train.x.shape == (6, HOURS, 17)
    assert split.test.x.shape == (4, HOURS, 17)
    assert split.train.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert split.train.x[2, 0, column("Heart Rate")] == 62


def test_an_hour_holds_its_last_measurement_else_the_hour_before_else_the_normal_value(folder):
    x = stay(
        folder,
        [
            (2.1, {"Heart Rate": "100"}),
            (2.9, {"Heart Rate": "110", "pH": "7.1"}),
            (5.0, {"Heart Rate": "90"}),
            (48.5, {"Heart Rate": "1"}),
            (-0.5, {"Heart Rate": "2"}),
        ],
    )
    assert x[:7, column("Heart Rate")].tolist() == [86, 86, 110, 110, 110, 90, 90]
    assert x[-1, column("Heart Rate")] == 90
    assert x[1, column("pH")] == pytest.approx(7.4)
    assert x[2:, column("pH")] == pytest.approx(7.1)
    assert (x[:, column("Weight")] == 81).all()


def test_the_coma_scales_words_are_their_numbers(folder):
    eye, motor, verbal = (
        f"Glascow coma scale {s}" for s in ("eye opening", "motor response", "verbal response")
    )
    x = stay(
        folder,
        [
            (0.0, {eye: "3 To speech", motor: "Abnormal extension", verbal: "1.0 ET/Trach"}),
            (1.0, {eye: "To Pain", motor: "6 Obeys Commands", verbal: "Inappropriate Words"}),
            (2.0, {eye: "None", motor: "Localizes Pain", verbal: "No Response-ETT"}),
        ],
    )
    assert x[:3, column(eye)].tolist() == [3, 2, 1]
    assert x[:3, column(motor)].tolist() == [2, 6, 5]
    assert x[:3, column(verbal)].tolist() == [1, 3, 1]


def test_what_is_wrong_with_the_files_is_said_in_one_line(folder, tmp_path):
    with pytest.raises(
        DataError, match=r'line 2, column "Heart Rate": wanted a number or a word .*, got "fast"'
    ):
        stay(folder, [(0.0, {"Heart Rate": "fast"})])
    (folder / "train" / "0_episode1_timeseries.csv").write_text("Hours,Heart Rate\n0,1\n")
    with pytest.raises(DataError, match="has no column Capillary refill rate, Diastolic"):
        get("mimic3", folder)
    (folder / "train" / "0_episode1_timeseries.csv").unlink()
    with pytest.raises(DataError, match=r"wants train/0_episode1_timeseries\.csv in the folder"):
        get("mimic3", folder)
    (folder / "test" / "listfile.csv").write_text("stay,y_true\nx.csv,2\n")
    (folder / "train" / "listfile.csv").write_text("stay,y_true\n")
    with pytest.raises(DataError, match="lists no stay"):
        get("mimic3", folder)
    (folder / "test" / "listfile.csv").unlink()
    with pytest.raises(DataError, match=r"wants test/listfile\.csv in the folder"):
        get("mimic3", folder)
