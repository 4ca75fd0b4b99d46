"""Names of one design are one family, so that no fold has half of it."""

from __future__ import annotations

from predictor_service.importers.model_families import model_family
from tests.support.cases import for_each


@for_each(
    ("name", "family"),
    [
        ("ResNet-50", "resnet"),
        ("tf_efficientnetv2_s", "efficientnet"),
        ("legacy_seresnext50_32x4d", "resnet"),
        ("wide_resnet101_2", "resnet"),
        ("inception_resnet_v2", "inception"),
        ("InceptionV3", "inception"),
        ("inception_next_base", "convnext"),
        ("mobilenetv3_large_100", "mobilenet"),
        ("mobilevitv2_150", "mobilevit"),
        ("deit3_base_patch16_224", "vit"),
        ("vit_base_resnet50d_224", "vit"),
        ("vitamin_large_224", "vitamin"),
        ("nf_regnet_b1", "nfnet"),
        ("nf_resnet50", "resnet"),
        ("regnety_160", "regnet"),
        ("efficientvit_b1", "efficientvit_mit"),
        ("efficientvit_m1", "efficientvit_msra"),
        ("resnet50.a1_in1k", "resnet"),
        ("somethingnew_v2_7b", "somethingnew"),
        ("LSTM", "lstm"),
        ("  VGG16_bn ", "vgg"),
        ("3d", "3d"),
        ("", "unnamed"),
    ],
)
def test_a_name_has_its_family(name: str, family: str) -> None:
    assert model_family(name) == family
