"""Sixty command lines that people get wrong: one per line, as they would type it.

Files in braces are made by the test: {folder} is empty, {graph} is an ONNX file, {text} is not one, {wrong_job} is a
job file with a misspelt key, {absent} is nowhere; the test runs beside script.py.
"""

from __future__ import annotations

COMMANDS = """
sumbit job.yaml
job list
ps -o xml
ps --timeout soon
ps --scheduler nowhere
ps --scheduler 127.0.0.1:99999999
ps --tls-ca-file {absent}
ps --token-file {absent}
submit
submit {absent}.yaml
submit {folder}/x.yaml
submit {wrong_job}
submit --steps 0 -- python train.py
submit --steps many -- python train.py
submit --gpus 0 -- python train.py
submit --gpus two -- python train.py
submit --share sometimes -- python train.py
submit --max-slowdown -0.5 -- python train.py
submit --memory lots -- python train.py
submit --memory 9000EiB -- python train.py
submit --batch-size 0 -- python train.py
submit --optimizer lion -- python train.py
submit --precision int3 -- python train.py
submit --input-wait-ratio 1.5 -- python train.py
submit --graph {absent} -- python train.py
submit --graph {text} --batch-size 8 -- python train.py
submit --graph {graph} --capture -- python train.py
submit --env PATH -- python train.py
submit --after-any -- python train.py
submit --bind batch -- python train.py
submit --bind n=x -- python train.py
submit --step 5 -- python train.py
submit --
submit python train.py --lr 0.1
submit script.py
predict python train.py --lr 0.1
describe
describe job-99
describe old older
logs
logs job-99
logs -f job-99 job-98
cancel
cancel job-99
pause job-99 --seconds 20
pause job-000001 --seconds 0
pause job-000001 --seconds forever
resume
explain
explain job-99
explain job-000003 --if batch_size
explain job-000003 --if steps=5 --if steps=6
explain job-000003 --no-start --if policy=srtf
nodes forget
gpus node-a
predict
predict {absent} --batch-size 8
predict sh train.sh
predict train.py --batch-size 8
predict {graph} train.py --batch-size 8
predict {text}
predict {graph} --batch-size none
predict {graph} --batch-size 0
predict {graph} --batch-size 8 --bind n
predict {graph} --batch-size 8 --optimizer lion
capture
capture --
up --standin-cores a,b
up --standin-cores 0,0
up --standin-cores 4096
up --standin-memory much
up --scheduler-port 70000
up --node-id two/words
up --allow-directory {absent}
up extra
policies use
nodes drain
policies use horus --set aging
policies chose horus
config set scheduler
config view extra
completion tcsh
doctor everything
""".strip().splitlines()
