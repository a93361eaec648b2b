import pytest

from raydpzv.errors import InputError
from raydpzv.settings.party_names import client_number, label, named

NAMES = ("bank", "corner shop")


def test_a_client_has_its_partys_name_or_else_its_number():
    assert [label(m, NAMES) for m in range(3)] == ["bank", "corner shop", "client 2"]
    assert label(1234) == "client 1,234"


def test_messages_name_the_party_beside_the_number():
    message = (
        "the upload of client 1 came before client 0's; client 12, client actor 0 and clients 0 are"
        " others"
    )
    assert named(message, NAMES) == message.replace("client 1 ", "corner shop (client 1) ").replace(
        "client 0's", "bank (client 0)'s"
    )
    assert named(message, ()) == message


@pytest.mark.parametrize(("given", "number"), [("corner shop", 1), ("0", 0), ("7", 7), ("-1", -1)])
def test_a_client_is_asked_for_by_name_or_number(given, number):
    assert client_number(given, NAMES) == number


@pytest.mark.parametrize(
    ("given", "names", "said"),
    [
        (
            "bnk",
            NAMES,
            'wanted bank, corner shop, or its number, got "bnk". Did you mean "bank"[?]$',
        ),
        ("bank", (), 'wanted the number of a client, got "bank".$'),
        ("9" * 19, (), "wanted the number of a client"),
    ],
)
def test_an_unknown_client_is_refused_with_the_names(given, names, said):
    with pytest.raises(InputError, match=said):
        client_number(given, names)
