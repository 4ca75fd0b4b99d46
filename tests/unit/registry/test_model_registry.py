"""Versions are what their names say, the history only grows, and what is served can always be trusted."""

import dataclasses
import errno
import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from predictor_service.errors import ModelError, UnknownVersionError
from predictor_service.registry import model_registry
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.manifest import Manifest, ScoredCandidate, seal
from predictor_service.registry.model_card import write_card
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.staleness import learned_by_older_rules, learned_from_other_data
from predictor_service.registry.version_comparison import compare_versions
from predictor_service.registry.version_history import VersionAction
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from tests.support.predictor_service import trained_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of a models folder with one served version and another one that differs in its seed only."""
    source = trained_store()
    (name,) = source.names()
    target = tmp_path / "models"
    shutil.copytree(_folder_of(source, name).parent.parent, target)
    manifest = source.manifest(name)
    other = seal(_changed(manifest, seed=99))
    files = {path.name: path.read_bytes() for path in _folder_of(source, name).iterdir()}
    del files["manifest.json"]
    VersionStore(target).add(other, files)
    return target


def _folder_of(store: VersionStore, name: str) -> Path:
    return store._versions / name


def _changed(manifest: Manifest, **fields: object) -> Manifest:
    read = {**{name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}, **fields}
    return Manifest(**read)


def names(root: Path) -> tuple[str, str]:
    store = VersionStore(root)
    served = store.current()
    assert served is not None
    (other,) = (name for name in store.names() if name != served)
    return served, other


def test_a_manifest_that_was_changed_later_does_not_fit_its_name(root: Path) -> None:
    served, _ = names(root)
    path = root / "versions" / served / "manifest.json"
    content = json.loads(path.read_text())
    content["targets"]["cpu-standin"]["step_ms"]["value_high"] += 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="does not match its name"):
        VersionStore(root).load(served)


@pytest.mark.parametrize("content", ["other spaces", "a blank version", "its name in another place"])
def test_a_manifest_is_known_by_its_content_however_it_was_written(root: Path, content: str) -> None:
    served, _ = names(root)
    path = root / "versions" / served / "manifest.json"
    text = path.read_text()
    if content == "other spaces":
        path.write_text(json.dumps(json.loads(text)))
        assert VersionStore(root).manifest(served).version == served
        return
    blank = text.replace(f'"version": "{served}"', '"version": ""')
    path.write_text(blank if content == "a blank version" else json.dumps({**json.loads(blank), "added": served}))
    with pytest.raises(ModelError, match="does not match its name"):
        VersionStore(root).manifest(served)


def test_a_model_file_that_was_changed_later_is_refused(root: Path) -> None:
    served, _ = names(root)
    path = next((root / "versions" / served).glob("*.onnx"))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="damaged"):
        VersionStore(root).load(served)


def _as_if_trained_before_tf32(root: Path, device: str) -> str:
    """Stores the served version again with the feature version before convolutions ran in TF32, of one device."""
    store = VersionStore(root)
    manifest = store.manifest(names(root)[0])
    older = seal(_changed(manifest, feature_version=4, targets={device: manifest.targets["cpu-standin"]}))
    files = {path.name: path.read_bytes() for path in _folder_of(store, manifest.version).iterdir()}
    del files["manifest.json"]
    store.add(older, files)
    return older.version


@pytest.mark.parametrize("device", ["cpu-standin", "Tesla V100-SXM2-16GB", "a card of nobody"])
def test_a_model_of_a_device_whose_features_kept_their_meaning_is_served_although_older(
    root: Path, device: str
) -> None:
    older = _as_if_trained_before_tf32(root, device)
    assert device in VersionStore(root).load(older).devices


def test_a_model_of_a_device_whose_convolutions_became_faster_is_trained_again(root: Path) -> None:
    older = _as_if_trained_before_tf32(root, "NVIDIA A100-SXM4-40GB")
    with pytest.raises(ModelError, match="reads features 4"):
        VersionStore(root).load(older)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff{}", b"[]", b"null", b"[" * 100_000, b'{"schema": "cotenant.model_version/3", "targets": []}'],
    ids=["empty", "no text", "a list", "null", "deep", "no targets"],
)
def test_a_damaged_version_is_refused_and_the_old_one_goes_on(root: Path, content: bytes) -> None:
    served, other = names(root)
    holder = VersionHolder(VersionStore(root))
    holder.reload()
    (root / "versions" / other / "manifest.json").write_bytes(content)
    (root / "current").write_text(other)
    assert holder.reload() == served
    with pytest.raises(ModelError, match="damaged"):
        VersionStore(root).load(other)


def test_a_version_that_is_learned_again_mends_its_damaged_files(root: Path) -> None:
    served, _ = names(root)
    store = VersionStore(root)
    manifest, folder = store.manifest(served), root / "versions" / served
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    damaged = next(folder.glob("*.onnx"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = damaged.stat().st_ino
    store.add(manifest, files)
    assert store.load(served).version == served
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    mended = damaged.stat().st_ino
    store.add(manifest, files)
    assert before != mended == damaged.stat().st_ino, "a whole version is left as it is"


def test_a_file_system_that_flushes_no_folders_keeps_versions_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some in user space and on networks do: there nothing more can be done for a name."""
    flush = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    _, other = names(root)
    store = VersionStore(root)
    folder = root / "versions" / other
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    store.add(seal(_changed(store.manifest(other), seed=98)), files)
    store.activate(other)
    assert (len(store.names()), store.current()) == (3, other)


def test_why_a_version_is_refused_is_logged_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    served, other = names(root)
    holder = VersionHolder(VersionStore(root))
    holder.reload()
    (root / "current").write_text("nothing")
    assert [holder.reload() for _ in range(3)] == [served] * 3
    assert [record.message for record in caplog.records] == ["version_refused"]
    (root / "current").write_text(other)
    assert holder.reload() == other
    (root / "current").write_text("nothing")
    holder.reload()
    assert len(caplog.records) == 2


def test_what_killed_programs_left_is_cleared_away_but_not_what_is_being_written(root: Path) -> None:
    served, other = names(root)
    for name in (".partial-old", ".partial-new", ".leaving-old"):
        (root / "versions" / name).mkdir()
    os.utime(root / "versions" / ".partial-old", (1, 1))
    VersionStore(root).forget_oldest(10, keep=())
    assert {path.name for path in (root / "versions").iterdir()} == {served, other, ".partial-new"}


def test_a_damaged_pointer_leaves_the_old_version_in_place(root: Path) -> None:
    served, _ = names(root)
    holder = VersionHolder(VersionStore(root))
    holder.reload()
    (root / "current").write_bytes(b"\xff\xfe")
    assert holder.reload() == served


def test_a_version_that_a_killed_program_was_writing_is_none(root: Path) -> None:
    served, other = names(root)
    (root / "versions" / other).rename(root / "versions" / ".partial-abc")
    assert VersionStore(root).names() == [served]


def test_held_out_rows_that_were_changed_later_are_refused(root: Path) -> None:
    served, _ = names(root)
    path = root / "versions" / served / "held_out.json"
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(ModelError, match="damaged"):
        VersionStore(root).held_out(served)


def test_promotions_and_rollbacks_walk_back_in_order(root: Path) -> None:
    served, other = names(root)
    registry = ModelRegistry(root, "a test")
    registry.promote(other, "try")
    assert registry.store.current() == other
    assert registry.roll_back("worse") == served
    with pytest.raises(UnknownVersionError, match="no version was served before"):
        registry.roll_back("once more")
    registry.promote(other, "again")
    events = registry.history.events()
    assert [(event.action, event.version, event.previous) for event in events] == [
        (VersionAction.PROMOTED, served, ""),
        (VersionAction.PROMOTED, other, served),
        (VersionAction.ROLLED_BACK, served, other),
        (VersionAction.PROMOTED, other, served),
    ]
    assert {event.who for event in events} == {"a test"}
    registry.close()


def test_a_version_that_was_learned_while_an_operator_changed_what_is_served_does_not_replace_that(root: Path) -> None:
    served, other = names(root)
    with closing(ModelRegistry(root, "a test")) as registry:
        assert registry.promote(other, "learned", in_place_of=served)
        assert registry.roll_back("worse") == served
        assert not registry.promote(other, "learned meanwhile", in_place_of=other)
        assert registry.store.current() == served
        assert registry.was_rolled_back()
        assert registry.promote(other, "by hand")


def test_of_many_versions_the_first_ones_leave_but_for_those_that_rollbacks_lead_to(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_registry, "VERSIONS_MAX", 3)
    served, other = names(root)
    registry = ModelRegistry(root, "a test")
    registry.promote(other, "better")
    manifest = registry.store.manifest(served)
    files = {path.name: path.read_bytes() for path in _folder_of(registry.store, served).iterdir()}
    del files["manifest.json"]
    added = [seal(_changed(manifest, seed=seed)) for seed in range(100, 105)]
    for number, name in enumerate((served, other, *(version.version for version in added[:-1]))):
        if number > 1:
            registry.add(added[number - 2], files, "learned")
        os.utime(_folder_of(registry.store, name), ns=(number, number))
    (_folder_of(registry.store, served).parent / ".leaving-x").mkdir()
    registry.add(added[-1], files, "learned")
    newest = {version.version for version in added[-3:]}
    assert set(registry.store.names()) == {served, other, *newest}, "three, and those that were served"
    assert registry.roll_back("worse") == served
    assert not list(root.glob("versions/.*"))
    assert registry.was_rolled_back()
    registry.promote(other, "again")
    assert not registry.was_rolled_back()
    registry.close()


def test_a_version_that_fails_its_golden_vectors_is_never_served(root: Path) -> None:
    served, other = names(root)
    registry = ModelRegistry(root, "a test")
    next((root / "versions" / other).glob("*.onnx")).write_bytes(b"not a model")
    with pytest.raises(ModelError):
        registry.promote(other, "try")
    assert registry.store.current() == served
    assert all(event.version != other for event in registry.history.events())
    registry.close()


def test_a_pointer_without_its_line_gets_one(root: Path) -> None:
    """As after a process that was killed between the two."""
    _, other = names(root)
    ModelRegistry(root, "a test").close()
    VersionStore(root).activate(other)
    registry = ModelRegistry(root, "the next writer")
    assert registry.history.events()[-1].version == other
    registry.close()


def test_a_rollback_that_was_killed_before_its_line_stays_a_rollback(root: Path) -> None:
    served, other = names(root)
    registry = ModelRegistry(root, "a test")
    registry.promote(other, "try")
    registry.close()
    VersionStore(root).activate(served)
    registry = ModelRegistry(root, "the next writer")
    assert registry.was_rolled_back()
    with pytest.raises(UnknownVersionError, match="no version was served before"):
        registry.roll_back("again")
    registry.close()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET why = 'nothing happened'"])
def test_the_history_cannot_be_rewritten(root: Path, statement: str) -> None:
    ModelRegistry(root, "a test").close()
    connection = sqlite3.connect(root / "history.sqlite")
    with pytest.raises(sqlite3.DatabaseError, match="only ever added to"):
        connection.execute(statement)
    connection.close()


def test_a_name_may_be_shortened_while_it_is_the_only_one(root: Path) -> None:
    served, _ = names(root)
    store = VersionStore(root)
    assert store.find(served[:8]) == served
    for prefix in ("", "zzz"):
        with pytest.raises(UnknownVersionError) as refusal:
            store.find(prefix)
        assert served in refusal.value.remedy


def test_differences_are_named_and_nothing_else(root: Path) -> None:
    store = VersionStore(root)
    served, other = (store.manifest(name) for name in names(root))
    assert [item.what for item in compare_versions(served, other)] == ["seed"]
    assert compare_versions(served, served) == []


def test_a_version_says_which_devices_changed_and_one_without_any_keeps_its_name(root: Path) -> None:
    manifest = VersionStore(root).manifest(names(root)[0])
    assert '"changes"' not in manifest.to_json()
    change = DeviceChange(device="cpu-standin", target="step_ms", at_ms=1_790_000_000_000, shift=0.405, datasets=("a",))
    changed = seal(_changed(manifest, changes=(change,)))
    assert changed.version != manifest.version
    assert Manifest.from_json(changed.to_json()).changes == (change,)
    said = "cpu-standin, step_ms: 1.50 times what it was, since 2026-09-21T"
    assert said in write_card(changed)
    (difference,) = compare_versions(manifest, changed)
    assert (difference.what, difference.before, difference.after[: len(said)]) == ("device changed", "", said)


def test_stale_versions_say_why(root: Path) -> None:
    manifest = VersionStore(root).manifest(names(root)[0])
    assert learned_by_older_rules(manifest) == ""
    assert "rules 1" in learned_by_older_rules(_changed(manifest, learning_version=1))
    (name,) = manifest.datasets
    assert learned_from_other_data(manifest, manifest.datasets) == ""
    assert f"{name} changed" in learned_from_other_data(manifest, {name: "0"})
    assert "more added" in learned_from_other_data(manifest, {**manifest.datasets, "more": "0"})


def test_the_card_says_why_the_winner_won(root: Path) -> None:
    card = VersionStore(root).card(names(root)[0])
    assert card.count("Why: smallest error in its own scale") == card.count("winner **")
    assert "| candidate | error, own scale |" in card


def test_the_card_does_not_call_a_winner_the_best_that_others_beat_by_chance(root: Path) -> None:
    manifest = VersionStore(root).manifest(names(root)[0])
    device, target = next((device, target) for device, targets in manifest.targets.items() for target in targets)
    record = manifest.targets[device][target]
    lucky = ScoredCandidate(name="lucky", error_mean=0.0, error_mean_unit=0.0)
    refused = ScoredCandidate(name="broken", error_mean=0.0, error_mean_unit=0.0, refusal="does not convert")
    changed = dataclasses.replace(record, candidates=(lucky, refused, *record.candidates))
    card = write_card(_changed(manifest, targets={**manifest.targets, device: {target: changed}}))
    assert f"Why: nothing is better beyond chance than {record.winner}" in card
    assert "broken was better but does not convert" in card
    assert "lucky was better" not in card
