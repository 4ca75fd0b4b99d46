"""Which jobs the plugin of Slurm holds, run by the Lua library that Slurm's own plugin brings."""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path

import pytest

from tests.support.cases import for_each

SCRIPT = Path(__file__).parents[3] / "deploy" / "slurm" / "job_submit.lua"
LIBRARY = next((found for name in ("lua5.4", "lua5.3", "lua5.1") if (found := ctypes.util.find_library(name))), None)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no library of Lua is here; Slurm's basic plugins bring one")


def run_lua(source: str) -> str:
    """Return what a chunk of Lua returns as text."""
    lua = ctypes.CDLL(str(LIBRARY))
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(lua.luaL_newstate())
    try:
        lua.luaL_openlibs(state)
        failed = lua.luaL_loadstring(state, source.encode())
        if not failed and hasattr(lua, "lua_pcallk"):
            failed = lua.lua_pcallk(state, 0, 1, 0, ctypes.c_ssize_t(0), None)
        elif not failed:
            failed = lua.lua_pcall(state, 0, 1, 0)
        said = lua.lua_tolstring(state, -1, None)
        assert not failed, said
        return bytes(said).decode()
    finally:
        lua.lua_close(state)


def is_held(job: str) -> bool:
    """Say whether a job is held; it is written as a table of Lua."""
    script = SCRIPT.read_text().replace("return slurm.SUCCESS\n", "").rstrip()
    source = f"""
slurm = {{SUCCESS = 0}}
{script}
local job = {{{job}}}
slurm_job_submit(job, {{}}, 0)
return job.priority == 0 and "held" or "left alone"
"""
    return run_lua(source) == "held"


@for_each(
    ("job", "held"),
    [
        ('comment = "cotenant"', True),
        ('comment = "cotenant memory=8GiB"', True),
        ('comment = "cotenants"', False),
        ("", False),
        # As newer versions note --cpus-per-task=4.
        ('comment = "cotenant", tres_per_task = "cpu=4"', True),
        ('comment = "cotenant", tres_per_task = "cpu=4,gres/gpu=1"', False),
        ('comment = "cotenant", tres_per_task = "gres:gpu:1"', False),
        ('comment = "cotenant", tres_per_node = "gres/gpu:1"', False),
        ('comment = "cotenant", tres_per_job = "gres/gpu:1"', False),
    ],
)
def test_jobs_that_ask_for_us_and_for_no_gpu_are_held(job: str, held: bool) -> None:
    assert is_held(job) is held
