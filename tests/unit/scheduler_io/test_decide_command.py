"""decide: the example that README names, and what is wrong with a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.errors import InputError
from scheduler_service.commands.decide import decide
from scheduler_service.errors import InvalidRequestError
from scheduler_service.grpc_api.status_codes import reason_of

WIDE = {"COLUMNS": "200"}
SNAPSHOT = str(Path(__file__).parents[3] / "examples" / "snapshot.json")


def test_the_example_shares_one_gpu_and_leaves_the_other_alone() -> None:
    done = CliRunner().invoke(decide, [SNAPSHOT, "-o", "json"], catch_exceptions=False)
    first, second = json.loads(done.stdout)["decisions"]
    assert first["start"]["assignments"] == [{"gpu_id": "node-a.0"}]
    assert first["reason"]["code"] == "STARTS_SHARED"
    assert (second["job_id"], "hold" in second) == ("transformer-2", True)


@pytest.mark.parametrize(
    ("flags", "reason", "complaint"),
    [
        (["--policy", "horuss"], "UNKNOWN_POLICY", "policy: there is no policy 'horuss' (did you mean horus?)"),
        (
            ["--policy", "horus", "--parameters", '{"x": 1}'],
            "INVALID_REQUEST",
            "parameters: policy horus has no parameter 'x'",
        ),
        (
            ["--policy", "horus", "--parameters", '{"queues": "x"}'],
            "INVALID_REQUEST",
            "parameters: parameter queues of policy horus must",
        ),
    ],
)
def test_a_wrong_policy_and_a_wrong_parameter_are_distinguished(flags: list[str], reason: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        CliRunner().invoke(decide, [SNAPSHOT, *flags], catch_exceptions=False)
    assert reason_of(caught.value) == reason
    assert caught.value.message.startswith(complaint)


def test_a_predictor_is_asked_over_tls_where_its_authority_is_named() -> None:
    flags = ["--predictor", "127.0.0.1:1", "--tls-ca-file", "/nowhere/ca.pem"]
    with pytest.raises(InputError, match=r"cannot read /nowhere/ca\.pem"):
        CliRunner().invoke(decide, [SNAPSHOT, *flags], catch_exceptions=False)


def test_a_certificate_is_never_left_unused_in_plain_text() -> None:
    flags = ["--predictor", "127.0.0.1:1", "--tls-certificate-file", "own.pem", "--tls-key-file", "own.key"]
    with pytest.raises(InputError, match="an own certificate is shown over TLS only"):
        CliRunner().invoke(decide, [SNAPSHOT, *flags], catch_exceptions=False)


def test_a_snapshot_in_which_no_job_waits_is_no_silence() -> None:
    done = CliRunner().invoke(decide, ["-"], input="{}", catch_exceptions=False)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no job waits in this snapshot\n")


def test_policies_are_compared_job_by_job() -> None:
    done = CliRunner(env=WIDE).invoke(
        decide, [SNAPSHOT, "--policy", "horus", "--compare", "fifo,ojpp"], catch_exceptions=False
    )
    words = [line.split()[:3] for line in done.stdout.splitlines()]
    assert words[0] == ["JOB", "POLICY", "DECISION"]
    assert [tuple(row) for row in words[1:]] == [
        ("cnn-1", "horus", "start"),
        ("cnn-1", "fifo", "hold"),
        ("cnn-1", "ojpp", "start"),
        ("transformer-2", "horus", "hold"),
        ("transformer-2", "fifo", "hold"),
        ("transformer-2", "ojpp", "hold"),
    ]


def test_what_was_weighed_stands_below_a_decision_where_it_was_asked_for() -> None:
    plain = CliRunner(env=WIDE).invoke(decide, [SNAPSHOT, "--policy", "horus"], catch_exceptions=False)
    weighed = CliRunner(env=WIDE).invoke(decide, [SNAPSHOT, "--policy", "horus", "--explain"], catch_exceptions=False)
    assert "node-a.1: no, Sharing is refused by transformer-1 (share: never)" in weighed.stdout
    assert "node-a.1: no" not in plain.stdout


@pytest.mark.parametrize("text", ["", "x", "[1, 2]"])
def test_a_file_that_is_no_snapshot_is_told_what_one_looks_like(tmp_path: Path, text: str) -> None:
    (tmp_path / "snapshot.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=r"snapshot: must be a JSON object, .* examples/snapshot\.json"):
        CliRunner().invoke(decide, [str(tmp_path / "snapshot.json")], catch_exceptions=False)


def test_a_predictor_without_a_port_is_refused_where_nothing_is_asked_of_it() -> None:
    with pytest.raises(InputError, match="'nowhere' is not an address"):
        CliRunner().invoke(decide, [SNAPSHOT, "--predictor", "nowhere"], catch_exceptions=False)


def test_a_policy_that_is_compared_twice_or_with_itself_answers_once() -> None:
    flags = ["--policy", "horus", "--compare", "fifo,horus,fifo"]
    done = CliRunner().invoke(decide, [SNAPSHOT, *flags], catch_exceptions=False, env=WIDE)
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == ["horus", "fifo"] * 2
