"""I-, B- and C-Greedy of the OJPP paper (section 5.2, Table 4): best fit with one constraint each, worked by hand."""

from __future__ import annotations

import pytest

from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.decisions import unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.policies.b_greedy import BGreedy
from scheduler_service.policies.best_fit import BestFit
from scheduler_service.policies.c_greedy import CGreedy
from scheduler_service.policies.i_greedy import IGreedy
from tests.support.cases import for_each
from tests.support.packing import Instance, Packed, Placement, placement_of

# Section 3.3: with VGG19 ResNet is 122 % slower, VGG19 18.7 % with ResNet.
RESNET_AND_VGG = Instance(
    jobs=(Packed(name="resnet", alpha=0.4), Packed(name="vgg", alpha=0.3)),
    gpus=2,
    slowdowns={("resnet", "vgg"): 1.22, ("vgg", "resnet"): 0.187},
)
# One worker of `wide` would be 0.15 slower with `old`, the other one alone not at all.
LOPSIDED = Instance(
    jobs=(Packed(name="old", alpha=0.5), Packed(name="wide", workers=2, alpha=0.2)),
    gpus=3,
    slowdowns={("wide", "old"): 0.15, ("old", "wide"): 0.05},
    held={"old": ["g0"]},
)
# Section 3.2: the worker of Fig. 2, <0.3, 0.62, 0.2>; 0.3 + 0.62 next to a small one of <0.05, 0.1, 0.5>.
FIGURE_2 = Packed(name="fig2", alpha=0.3, gamma=0.3, delta=0.62, p=0.2)
SMALL = Packed(name="small", alpha=0.2, gamma=0.05, delta=0.1, p=0.5)
PEAKS = Instance(jobs=(FIGURE_2, SMALL), gpus=2)


def packed(policy: Policy, instance: Instance) -> Placement:
    return placement_of(instance, policy.decide(instance.view()))


@for_each(
    ("policy", "instance", "expected"),
    [
        (BestFit(), RESNET_AND_VGG, {"resnet": ["g0"], "vgg": ["g0"]}),
        (IGreedy(), RESNET_AND_VGG, {"resnet": ["g0"], "vgg": ["g1"]}),
        (BGreedy(), RESNET_AND_VGG, {"resnet": ["g0"], "vgg": ["g0"]}),
        (CGreedy(), RESNET_AND_VGG, {"resnet": ["g0"], "vgg": ["g0"]}),
        (BestFit(), LOPSIDED, {"old": ["g0"], "wide": ["g0", "g1"]}),
        (IGreedy(), LOPSIDED, {"old": ["g0"], "wide": ["g0", "g1"]}),
        (BGreedy(), LOPSIDED, {"old": ["g0"], "wide": ["g1", "g2"]}),
        (CGreedy(), LOPSIDED, {"old": ["g0"], "wide": ["g0", "g1"]}),
        # Every peak: 0.92 + 0.15 = 1.07. One peak: 0.35 + 0.62 = 0.97, and both surge 0.2 x 0.5 = 0.1 of the time.
        (BestFit(), PEAKS, {"fig2": ["g0"], "small": ["g1"]}),
        (IGreedy(), PEAKS, {"fig2": ["g0"], "small": ["g1"]}),
        (BGreedy(), PEAKS, {"fig2": ["g0"], "small": ["g1"]}),
        (CGreedy(), PEAKS, {"fig2": ["g0"], "small": ["g0"]}),
        (CGreedy(tau_max=0.05), PEAKS, {"fig2": ["g0"], "small": ["g1"]}),
    ],
)
def test_table_4_every_baseline_keeps_its_own_constraint_only(
    policy: Policy, instance: Instance, expected: Placement
) -> None:
    assert packed(policy, instance) == expected


@pytest.mark.parametrize(
    ("policy", "instance", "code", "numbers"),
    [
        (
            IGreedy(theta_max=1.0),
            RESNET_AND_VGG,
            "DEVICE_SLOWDOWN_TOO_HIGH",
            {"pairwise_slowdown_ratio": 1.22, "device_slowdown_max_ratio": 1.0},
        ),
        (CGreedy(tau_max=0.0), PEAKS, "COLLISION_TOO_LIKELY", {"collision_ratio": 0.1, "collision_max_ratio": 0.0}),
        (BestFit(), PEAKS, "PEAKS_DO_NOT_FIT", {"memory_ratio": 1.07}),
    ],
)
def test_a_job_that_waits_learns_which_constraint_stood_against_it(
    policy: Policy, instance: Instance, code: str, numbers: dict[str, float]
) -> None:
    crowded = Instance(jobs=instance.jobs, gpus=1, slowdowns=instance.slowdowns)
    _, held = unfolded(policy.decide(crowded.view()))
    assert held.reason.code == code
    assert held.reason.numbers == pytest.approx(numbers)


def test_equation_8_protects_the_jobs_that_are_already_there() -> None:
    """`pair` runs on both GPUs; a guest on one of them would slow that worker down by 0.12 and the other not at all."""
    jobs = (Packed(name="pair", workers=2), Packed(name="guest"))
    instance = Instance(jobs=jobs, gpus=2, slowdowns={("pair", "guest"): 0.12}, held={"pair": ["g0", "g1"]})
    (held,) = unfolded(BGreedy().decide(instance.view()))
    assert (held.reason.code, held.reason.job_ids) == ("WORKERS_OUT_OF_BALANCE", ("pair",))
    assert held.reason.numbers == pytest.approx({"difference_ratio": 0.12, "difference_max_ratio": 0.1})
    assert packed(BGreedy(theta_diff=0.2), instance)["guest"] == ["g0"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"tau_max": 1.5}, r"tau_max must be in \[0, 1\]"),
        ({"compute_requirement": "flops"}, "compute_requirement must be one of sm_activity, utilization, zero"),
    ],
)
def test_parameters_without_a_meaning_are_refused(wrong: dict[str, float | str], complaint: str) -> None:
    with pytest.raises(PolicyParameterError, match=complaint):
        CGreedy(**wrong)  # type: ignore[arg-type]


def test_negative_limits_of_slowdown_are_refused() -> None:
    with pytest.raises(PolicyParameterError, match="must not be negative"):
        IGreedy(theta_max=-0.1)
    with pytest.raises(PolicyParameterError, match="must not be negative"):
        BGreedy(theta_diff=-0.1)
