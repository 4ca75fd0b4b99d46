"""Scripts as people write them, that look like no example: how they print, start others and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class OddScript:
    """One job of a stranger.

    Attributes:
        files: Name -> text of what lies in its folder.
        command: What is put behind `--`; `{python}` is a Python.
        steps: What is stated with `--steps`; 0 = nothing.
        reason: Code that the job ends with.
        steps_done: How far it must be said to have come.
        exit_code: Of its program.
        printed: Part of what `logs` shows.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str]
    steps: int = 0
    reason: str = "FINISHED"
    steps_done: int = 0
    exit_code: int = 0
    printed: str = ""


def script(source: str, **facts: object) -> OddScript:
    """Returns one that is a file called train.py."""
    given = {"command": ("{python}", "train.py"), **facts}
    return OddScript(files={"train.py": dedent(source)}, **given)  # type: ignore[arg-type]


_ONE = 'import sys\nfor i in range(1, 11): print(f"lr {sys.argv[1]} iteration {i}/10: loss {1 / i:.3f}", flush=True)\n'

ODD_SCRIPTS: Mapping[str, OddScript] = MappingProxyType(
    {
        "own_keras_bar": script(
            r"""
            import sys
            for epoch in range(2):
                print(f"Epoch {epoch + 1}/2")
                for i in range(1, 26):
                    bar = "=" * i + ">" + "." * (25 - i)
                    sys.stdout.write("\r%d/25 [%s] - ETA: %ds - loss: %.4f" % (i, bar, 25 - i, 1 / i))
                    sys.stdout.flush()
                print()
            """,
            steps=50,
            steps_done=50,
        ),
        "workers_that_print": script(
            """
            import multiprocessing, time
            def work(queue, number):
                for i in range(30):
                    print(f"[worker {number}] loaded sample {i}", flush=True)
                    queue.put(i)
            if __name__ == "__main__":
                queue = multiprocessing.Queue()
                for number in range(2):
                    multiprocessing.Process(target=work, args=(queue, number), daemon=True).start()
                for s in range(60):
                    queue.get()
                    if s % 5 == 4:
                        print("step", s + 1, "/ 60, loss", 1 / (s + 1), flush=True)
            """,
            steps=60,
            steps_done=60,
        ),
        "other_languages": script(
            r"""
            import sys
            for i in range(1, 21):
                print(f"第 {i} 步 / 共 20 步", flush=True)
            sys.stdout.buffer.write(b"Pr\xfcfung \x80 20\n")
            """,
            steps=20,
            steps_done=20,
            printed="第 20 步 / 共 20 步\nPr\ufffdfung",
        ),
        "many_lines": script(
            'for n in range(1, 50_001): print(f"step {n} loss=0.123 and more text")', steps_done=50_000
        ),
        "stderr_only": script(
            """
            import logging
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s [train.py:42] %(message)s")
            for i in range(0, 100, 10):
                logging.info("epoch 0 step %d/100 lr 1.00e-03 loss %.3f", i, 1 / (i + 1))
            """,
            steps=100,
            steps_done=100,
        ),
        "shell_loop": OddScript(
            files={
                "one.py": _ONE,
                "loop.sh": 'for lr in 0.1 0.01 0.001; do echo "== $lr"; "$1" one.py $lr; done',
            },
            command=("bash", "loop.sh", "{python}"),
            steps=30,
            steps_done=30,
        ),
        "relative_after_cd": OddScript(
            files={"one.py": _ONE, "sub/empty": "", "run.sh": 'cd sub && "$1" ../one.py x'},
            command=("bash", "run.sh", "{python}"),
            steps=10,
            steps_done=10,
        ),
        "from_stdin": OddScript(
            files={"train.py": 'for i in range(1, 11): print("step", i)'},
            command=("sh", "-c", "{python} - < train.py"),
            steps=10,
            steps_done=10,
        ),
        "asks": script(
            'print(input("go on? "))', reason="JOB_ERROR", exit_code=1, printed="EOFError: EOF when reading a line"
        ),
        "exit_200": script(
            'print("step 1\\nstep 2")\nraise SystemExit(200)', reason="JOB_ERROR", exit_code=200, steps_done=2
        ),
        "exit_85_unasked": script("raise SystemExit(85)", reason="JOB_ERROR", exit_code=85),
        "leaves_children": script(
            """
            import os, time
            for _ in range(3):
                if os.fork() == 0:
                    os._exit(0)
            if os.fork() == 0:
                time.sleep(3600)
            for i in range(1, 11):
                print("it", i, flush=True)
            os._exit(0)
            """,
            steps=10,
            steps_done=10,
        ),
        "deletes_its_folder": OddScript(
            files={
                "gone/train.py": "import os, shutil\n"
                "for i in range(1, 11):\n"
                '    print("batch", i, "of", 10, flush=True)\n'
                "    if i == 3: shutil.rmtree(os.path.dirname(os.path.abspath(__file__)))\n"
            },
            command=("{python}", "gone/train.py"),
            steps=10,
            steps_done=10,
        ),
        "epochs_only": script(
            'for e in range(1, 13): print(f"Epoch {e}/12: train loss {1 / e:.4f}, 12.3 it/s", flush=True)',
            steps=12,
            steps_done=12,
        ),
        "json_lines": script(
            """
            import json
            for i in range(0, 50, 5):
                print(json.dumps({"_step": i, "train/loss": 1 / (i + 1), "_runtime": i / 10}), flush=True)
            """,
            steps=50,
            steps_done=50,
        ),
        "trainer_class": script(
            """
            import logging
            logging.basicConfig(format="%(asctime)s | %(levelname)s | %(name)s | %(message)s", level=logging.INFO)
            log = logging.getLogger("trainer")
            for epoch in range(3):
                for batch in range(0, 100, 10):
                    log.info("[Epoch %d/%d][Batch %d/%d] loss=%.4f", epoch + 1, 3, batch, 100, 1 / (batch + 1))
            """,
            steps=300,
            steps_done=300,
        ),
        "graph_network_epochs": script(
            'for e in range(1, 201): print(f"Epoch: {e:03d}, Loss: {1 / e:.4f}, Train: 0.5, Val: 0.5", flush=True)',
            steps=200,
            steps_done=200,
        ),
        "from_zero_with_its_last": script(
            'for n in range(150): print({"step": n, "loss": 0.5}, flush=True) if n % 15 == 0 or n == 149 else None',
            steps=150,
            steps_done=150,
        ),
        "decimal_comma": script(
            r"""
            for n in range(15, 181, 15):
                print("It\u00e9ration", n, ": perte 0,5321, termin\u00e9 \u00e0 10,5 %", flush=True)
            """,
            steps=180,
            steps_done=180,
            printed="Itération 180",
        ),
        "two_prints": script(
            'for i in range(20): print(f"iter {i}: loss 1") if i % 10 == 0 else None', steps=20, steps_done=20
        ),
        "steers_the_terminal": script(
            r"""
            print("\x1b[2J\x1b]0;owned\x07step 1\x00\x1b[1;31m")
            print("\x1b[Astep 2\u202e")
            """,
            steps=2,
            steps_done=2,
        ),
        "spaces in its name": OddScript(
            files={"my train é v2.py": 'print("step 1"); print("step 2")'},
            command=("{python}", "my train é v2.py"),
            steps=2,
            steps_done=2,
        ),
        "closes_its_output": script(
            'import os\nprint("step 1\\nstep 2", flush=True)\nos.close(1); os.close(2)', steps=2, steps_done=2
        ),
    }
)
