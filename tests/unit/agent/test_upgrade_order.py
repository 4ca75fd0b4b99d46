"""Scheduler before agents: what the upgrade page promises of each step and of going back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.access.callers import AccessRules, CallEvidence, NotPermittedError
from cotenant.errors import InputError
from cotenant.tls_settings import check_exposure
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import ClusterRefusedError
from cotenant_agent.records import LogPosition
from scheduler_service.settings import Settings

NEWER = LogPosition(incarnation_id="a" * 32, generation=1, start_id="one", sequence=7, seal=b"sealed")
OLDER = None
"""A scheduler of before there were incarnations says nothing of itself."""


def test_a_newer_agent_serves_an_older_scheduler_until_it_has_joined_a_newer_one(tmp_path: Path) -> None:
    membership = ClusterMembership(tmp_path / "cluster.json")
    membership.join(OLDER, (), is_free=False)
    membership.join(NEWER, (), is_free=False)
    for again in (membership, ClusterMembership(tmp_path / "cluster.json")):
        with pytest.raises(ClusterRefusedError, match="it is an older version; upgrade it") as refused:
            again.join(OLDER, (), is_free=True)
        assert "leave-cluster" in str(refused.value)


def test_after_leaving_its_cluster_a_newer_agent_serves_an_older_scheduler_again(tmp_path: Path) -> None:
    membership = ClusterMembership(tmp_path / "cluster.json")
    membership.join(NEWER, (), is_free=False)
    membership.leave()
    membership.join(OLDER, (), is_free=False)


def test_a_service_that_was_served_with_tls_alone_says_what_it_needs_now() -> None:
    before = Settings(address="0.0.0.0:0", tls_certificate_file=Path("c"), tls_key_file=Path("k"))
    with pytest.raises(InputError, match="callers are not identified") as refused:
        check_exposure(before.address, before)
    assert "--client-ca-file or --callers-file" in refused.value.remedy
    with pytest.raises(InputError, match="callers who show one"):
        check_exposure(before.address, replace(before, serve_roleless=True))
    check_exposure(before.address, replace(before, serve_roleless=True, client_ca_file=Path("ca")))


def test_a_certificate_of_before_there_were_roles_is_served_with_that_flag_only() -> None:
    shown = {"x509_pem_cert": [b"pem"], "x509_common_name": [b"node-1"]}
    evidence = CallEvidence(peer="ipv4:10.0.0.9:1", authentication=shown, metadata=())
    with pytest.raises(NotPermittedError, match="names no role") as refused:
        AccessRules(asks_certificates=True).identify(evidence)
    assert "cotenant certs issue" in refused.value.remedy
    assert AccessRules(asks_certificates=True, serves_roleless=True).identify(evidence).acts_for_all
