"""Pretrained language models of transformers, from a local folder: for scenario files. Nothing is
downloaded.

x: token ids [B, L] of the folder's tokenizer, padded on either side; both sides give the same scores
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from raydpzv.errors import DataError, SpecError, missing
from raydpzv.models.initial_weights import shapes_alone

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_OF_FILES = {"local_files_only": True, "trust_remote_code": False}


class NextWord(nn.Module):
    """A causal language model whose scores are the logits of some words after a text's last token.

    words: a token id for each class. shape, vocabulary: of the texts. pad: see `_padding`.
    """

    def __init__(
        self,
        outputs: int,
        shape: tuple[int, ...],
        vocabulary: int = 0,
        folder: str = "",
        words: Any = (),
        pad: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(words, list | tuple) or [type(word) for word in words] != [int] * outputs:
            raise SpecError(
                f"model.options.words: wanted {outputs} token ids, one for each class, got "
                f"{words!r}"
            )
        self.model = _pretrained("AutoModelForCausalLM", folder, shape, max(vocabulary, *words, 0))
        self._words, self._pad = list(words), _padding(self.model.config, pad, folder)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L] -> scores [B, C]."""
        ids, real = _tokens(x, self._pad)
        found = self.model.base_model(
            input_ids=ids, attention_mask=real, use_cache=False
        ).last_hidden_state
        last = (real.sum(1) - 1).clamp(min=0)
        logits = self.model.get_output_embeddings()(
            found[torch.arange(len(ids), device=ids.device), last]
        )
        return logits[:, self._words]


class Encoder(nn.Module):
    """An encoder of texts: the mean of its last layer over tokens that are no padding, then one
    linear layer.

    shape, vocabulary: of the texts. pad: see `_padding`.
    """

    def __init__(
        self,
        embedding: int,
        shape: tuple[int, ...],
        vocabulary: int = 0,
        folder: str = "",
        pad: Any = None,
    ) -> None:
        super().__init__()
        self.model = _pretrained("AutoModel", folder, shape, vocabulary, add_pooling_layer=False)
        self._pad = _padding(self.model.config, pad, folder)
        self.out = nn.Linear(self.model.config.hidden_size, embedding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L] -> embeddings [B, E]."""
        ids, real = _tokens(x, self._pad)
        mask = None if ids.is_meta else real  # the library looks at the numbers of a mask
        found = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = real[..., None].to(found.dtype)
        return self.out((found * weights).sum(1) / weights.sum(1).clamp(min=1))


def _padding(config: Any, pad: Any, folder: str) -> int:
    """Return the id of padding: the given one, or the configuration's. -1: no text is padded.

    Nothing tells padding from words without it, so that another id would change scores in silence.
    """
    named, ids = getattr(config, "pad_token_id", None), range(config.vocab_size)
    if type(pad) is int and (pad == -1 or pad in ids):
        return pad
    if pad is None and type(named) is int and named in ids:
        return named
    raise SpecError(
        f"model.options.pad: wanted the id that pads the texts, from 0 to {ids[-1]}, or -1 if none "
        f"is padded, got {'none' if pad is None else repr(pad)[:60]}, and config.json of {folder} "
        f"names {'none' if named is None else repr(named)[:60]}; set it"
    )


def _tokens(x: torch.Tensor, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids as int [B, L] with padding last, and 1 for each that is no padding. Files of token
    ids come as float32.

    Models count positions from the first id, each in its own way. So words come first, whichever
    side was padded.
    """
    ids = x.long()
    ids = ids.gather(1, (ids == pad).long().argsort(dim=1, stable=True))
    return ids, (ids != pad).long()


def _pretrained(
    kind: str, folder: str, shape: tuple[int, ...], vocabulary: int, **given: Any
) -> Any:
    """Return a model with the folder's weights, or only with their shapes inside
    `without_weights`.
    """
    path = Path(folder)
    if not folder or not (path / "config.json").is_file():
        raise DataError(
            "model.folder: wanted a folder with config.json and weights of transformers, got "
            f"{folder or 'none'}; write one with model.save_pretrained(FOLDER)"
        )
    try:
        import transformers
    except ImportError:
        raise missing("transformers", "transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # a folder may come from anybody: no code of its own, no pickles, no hub
    config = transformers.AutoConfig.from_pretrained(path, **_OF_FILES)
    make = getattr(transformers, kind)
    if vocabulary > config.vocab_size:
        raise SpecError(
            f"data.vocabulary, model.options.words: wanted ids below {config.vocab_size}, which "
            f"the model of {folder} has, got {vocabulary}"
        )
    if shape[-1] > (most := getattr(config, "max_position_embeddings", shape[-1])):
        raise SpecError(
            f"data: wanted texts of at most {most} tokens for the model of {folder}, got "
            f"{shape[-1]}; cut them"
        )
    # attention in its plain form: the others choose a kernel by the padding of the whole batch
    given |= {"attn_implementation": "eager", "dtype": torch.float32}
    if shapes_alone():
        return make.from_config(config, trust_remote_code=False, **given)
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise DataError(f"model.folder: {folder} has no weights; wanted {' or '.join(_WEIGHTS)}")
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        model, found = make.from_pretrained(
            path, output_loading_info=True, weights_only=True, **_OF_FILES, **given
        )
    if lacking := sorted(found["missing_keys"]):
        raise DataError(
            f"model.folder: the weights of {folder} lack {', '.join(lacking[:5])}; save the whole "
            "model"
        )
    return model
