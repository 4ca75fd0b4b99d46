"""Which family a model belongs to, by its name: the groups that a split without leakage leaves out whole.

One rule for every set: lower case, blanks and hyphens as underscores, tags of authors and variants in front dropped
(`tf_`, `legacy_`, `ese_` ...); then the longest beginning in the table below names the family. A name without an
entry is a family of its own: its letters in front of the first digit or underscore.

Families are coarse on purpose, since two names of one design in two folds would leak: ResNeXt, SE-ResNet and wide
ResNet are residual networks, DeiT, BEiT and EVA are plain vision transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TAGS: Final = re.compile(
    r"^(?:(?:tf|gluon|ig|ssl|swsl|tv|legacy|adv|ens|jx|dm|nf|test|eca|ese|gc|wide|bat|sam2|lambda|small)_)+"
)
_STEM: Final = re.compile(r"[a-z]+")

_BEGINNINGS: Final[Mapping[str, str]] = {
    "alexnet": "alexnet",
    "bert": "bert",
    "botne": "resnet", "halo": "resnet", "sebotnet": "resnet", "sehalonet": "resnet", "lamhalobotnet": "resnet",
    "resne": "resnet", "seresne": "resnet", "ecaresne": "resnet", "gcresne": "resnet", "skresne": "resnet",
    "res2ne": "resnet", "tresnet": "resnet", "senet": "resnet", "byobnet": "resnet",
    "caformer": "metaformer", "convformer": "metaformer", "poolformer": "metaformer",
    "coatne": "maxvit", "maxvit": "maxvit", "maxxvit": "maxvit",
    "convnext": "convnext", "inception_next": "convnext",
    "cs3": "darknet", "cspresne": "darknet", "cspdarknet": "darknet", "darknet": "darknet", "sedarknet": "darknet",
    "cspnext": "darknet",
    "cyclegan": "gan", "dcgan": "gan",
    "deepspeech": "speech",
    "densenet": "densenet",
    "efficientnet": "efficientnet", "efficientnetv2": "efficientnet", "mixnet": "efficientnet",
    "tinynet": "efficientnet",
    "efficientformer": "efficientformer",
    "efficientvit_m": "efficientvit_msra", "efficientvit_": "efficientvit_mit",
    "ghostnet": "ghostnet", "repghostnet": "ghostnet",
    "hgnet": "hgnet",
    "hiera": "hiera", "hieradet": "hiera",
    "inception": "inception", "googlenet": "inception",
    "lm": "lstm", "lstm": "lstm",
    "mixer": "mlp_mixer", "gmixer": "mlp_mixer", "gmlp": "mlp_mixer", "resmlp": "mlp_mixer",
    "mnasnet": "mobilenet", "semnasnet": "mobilenet", "mobilenet": "mobilenet", "spnasnet": "mobilenet",
    "fbnet": "mobilenet", "hardcorenas": "mobilenet", "lcnet": "mobilenet",
    "mobilevit": "mobilevit", "semobilevit": "mobilevit",
    "nasnet": "nasnet", "pnasnet": "nasnet",
    "nfnet": "nfnet", "regnet_b": "nfnet",
    "regnet": "regnet", "haloregnet": "regnet", "gernet": "regnet",
    "rexnet": "rexnet",
    "swin": "swin",
    "tiny_vit": "tiny_vit",
    "vgg": "vgg",
    "vit": "vit", "deit": "vit", "beit": "vit", "eva": "vit", "flexivit": "vit", "samvit": "vit", "naflexvit": "vit",
    "aimv2": "vit", "pe_": "vit", "cait": "vit", "deepseek_vit": "vit", "qwen3_vit": "vit", "gemma4_vit": "vit",
    "vitamin": "vitamin",
    "vovnet": "vovnet",
    "yolo": "yolo",
}  # fmt: skip


def model_family(name: str) -> str:
    """The family of a model by the rule of this module.

    Args:
        name: As a set writes it, e.g. tf_efficientnetv2_s, ResNet-50, InceptionV3.

    Returns:
        A lower-case name, never empty.
    """
    plain = _TAGS.sub("", re.sub(r"[\s/-]+", "_", name.strip().lower()))
    beginnings = [beginning for beginning in _BEGINNINGS if plain.startswith(beginning)]
    if beginnings:
        return _BEGINNINGS[max(beginnings, key=len)]
    stem = _STEM.match(plain)
    return stem.group() if stem else plain or "unnamed"
