"""Low-rank adapters beside frozen linear layers, under the names that peft gives them.

Source: Hu et al., ICLR 2022, Eq. (3): y = W x + (alpha / r) B A x. W [O, I] is frozen, A [r, I] and
B [O, r] learn.
"""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from raydpzv.errors import SpecError, suggest
from raydpzv.settings.sections import LoraSection

_NAMED = 6


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter. A is drawn like other layers, and B is zero: at first
    nothing changes.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer, self.scaling = layer, alpha / rank
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        # on the CPU where a model without numbers is built: a parameter that has numbers is not
        # drawn
        self.lora_B.weight = nn.Parameter(torch.zeros(layer.out_features, rank, device="cpu"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., I] -> [..., O]."""
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))

    def merged(self) -> torch.Tensor:
        """Return the weight [O, I] of one layer that computes the same."""
        return self.base_layer.weight + self.scaling * (self.lora_B.weight @ self.lora_A.weight)


class LoraModel(nn.Module):
    """A user's module in which only adapters and `modules_to_save` learn. Raises SpecError for
    unfit layers.
    """

    def __init__(self, module: nn.Module, lora: LoraSection, title: str) -> None:
        super().__init__()
        module.requires_grad_(False)
        self._lora, self.adapters = lora, dict[str, LoraLinear]()
        self.saved = _matched(module, lora.modules_to_save, "modules_to_save", title)
        for name in self.saved:
            module.get_submodule(name).requires_grad_(True)
        for name in _matched(module, lora.targets, "targets", title):
            path, _, leaf = name.rpartition(".")
            layer: Any = module.get_submodule(name)
            self.adapters[name] = LoraLinear(layer, lora.rank, lora.alpha)
            setattr(module.get_submodule(path), leaf, self.adapters[name])
        base: Any = nn.Module()
        base.model = module
        self.base_model = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the module does."""
        return self.base_model.model(x)

    def merged(self) -> dict[str, torch.Tensor]:
        """Return the weights of the user's module by its own names, each adapter added to the
        weight beside it.
        """
        found = self.base_model.model.state_dict()
        for name, layer in self.adapters.items():
            del found[f"{name}.lora_A.weight"], found[f"{name}.lora_B.weight"]
            for leaf in layer.base_layer.state_dict():
                found[f"{name}.{leaf}"] = found.pop(f"{name}.base_layer.{leaf}")
            found[f"{name}.weight"] = layer.merged()
        return dict(found)

    def adapter_config(self) -> dict[str, Any]:
        """Return peft's adapter_config.json."""
        facts = {
            "peft_type": "LORA",
            "r": self._lora.rank,
            "lora_alpha": self._lora.alpha,
            "bias": "none",
        }
        named = {"target_modules": list(self.adapters), "modules_to_save": self.saved or None}
        return (
            facts
            | named
            | {"base_model_name_or_path": None, "inference_mode": True, "task_type": None}
        )


def _matched(module: nn.Module, words: tuple[str, ...], setting: str, title: str) -> list[str]:
    """Return the layers that words name in full, by the end of the name, or by a pattern."""
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    faults = {name: _fault(layer, setting, uses) for name, layer in module.named_modules() if name}
    fits, found = [name for name, wrong in faults.items() if not wrong], dict[str, None]()
    for word in words:
        meant = [
            name for name in faults if f".{name}".endswith(f".{word}") or fnmatchcase(name, word)
        ]
        good = [name for name in meant if not faults[name]]
        if not good or (good != meant and not set("*?[") & set(word)):  # a pattern takes what fits
            wrong = [f'"{name}" {faults[name]}' for name in meant if faults[name]]
            said = wrong[0] if wrong else f'no layer of {title} is named "{word}"'
            near = suggest(word, [*dict.fromkeys(name.rpartition(".")[2] for name in fits), *fits])
            listed = ", ".join([*fits[:_NAMED], *(["..."] if len(fits) > _NAMED else [])]) or "none"
            raise SpecError(f"model.lora.{setting}: {said}. {near}Layers that fit: {listed}")
        found |= dict.fromkeys(good)
    return list(found)


def _fault(layer: nn.Module, setting: str, uses: Counter[int]) -> str:
    """Return why a layer does not fit, "" if it does. uses: how many layers have each parameter."""
    parameters = list(layer.parameters())
    if setting == "targets" and type(layer) is not nn.Linear:
        return f"is {type(layer).__name__}: adapters go beside nn.Linear alone"
    if any(uses[id(p)] > 1 for p in parameters):
        return "shares a weight with another layer (tied)"
    return (
        "is in modules_to_save"
        if any(p.requires_grad for p in parameters)
        else ""
        if parameters
        else "is empty"
    )
