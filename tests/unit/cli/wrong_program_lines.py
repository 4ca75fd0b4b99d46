"""Command lines that people get wrong, of the verbs that a service's own program runs: one per line, as they type it.

In braces stand files of the repository ({workload}, {snapshot}, {standin} = a data set, {campaign}); all others are
made by the test in the folder that it runs in, or are not there.
"""

from __future__ import annotations

COMMANDS = """
simulate
simulate absent.csv
simulate folder
simulate text.onnx
simulate empty.csv
simulate headers.csv
simulate negative.csv
simulate words.csv
simulate twice.csv
simulate wrong.toml
simulate {workload} --cluster 0x4
simulate {workload} --cluster 4
simulate {workload} --cluster 100000x100000
simulate {workload} --cluster own
simulate {workload} --policies ""
simulate {workload} --policies FIFO
simulate {workload} --parameter overtaking=true
simulate {workload} --parameter fifo.nothing=1
simulate {workload} --parameter fifo.overtaking=maybe
simulate {workload} --predictions noise:-1
simulate {workload} --predictions trained
simulate {workload} --seed -1
simulate {workload} --report folder
simulate {workload} --report absent/report.html
simulate {workload} --measured absent
simulate {workload} --measured text.onnx
simulate {workload} --gpu-counts 0,1
simulate {workload} --tenants absent.toml
simulate {workload} --tenants wrong.toml
simulate {workload} -o xml
shadow
shadow --sacct absent --cluster 4x8 --measured {standin}
shadow --sacct text.onnx --cluster 4x8 --measured {standin}
shadow --trace {workload} --cluster 4x8 --measured absent
decide
decide absent.json
decide folder
decide text.onnx
decide empty.csv
decide list.json
decide unknown.json
decide {snapshot} --policy none
decide {snapshot} --parameters words
decide {snapshot} --parameters [1]
decide {snapshot} --predictor nowhere
backup
restore folder
log verify absent
audit --state-dir absent
export-log --state-dir absent
datasets import gavel
datasets import gavel absent -o out
datasets import nothing folder -o out
datasets check absent
datasets features -o out
models show deadbeef
models promote deadbeef
models rollback
profiles export
profiles forget
profiles forget --job-key nothing
profile plan absent.toml
profile plan wrong.toml
profile probe gpu
profile status absent
profile report folder
profile run {campaign}
calibrate --device gpu0
observe mesos
observe --seconds 0
evaluate {standin}
evaluate {standin} --target speed
evaluate {standin} --target memory --folds 1
""".strip().splitlines()
