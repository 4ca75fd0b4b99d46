"""Every reason in words: what is the case, the numbers behind it, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from cotenant.counted_nouns import agreed
from scheduler_service.core.records import Reason

REASON_TEXTS: Mapping[str, str] = {
    # held by the engine
    "SUBMITTED": "The job was accepted and waits for its first decision.",
    "NO_NODE": "No node has joined the cluster yet; start a node agent ({gpus_needed} GPU(s) are needed).",
    "AWAITING_PREDICTION": "The predictor has been asked about {devices_unanswered} device type(s) and has not "
    "answered "
    "for {waited_ms}.",
    "RESTORED": "The state was restored: an attempt of which it knows nothing may still run somewhere for {wait_ms}.",
    "FORMER_ATTEMPT_RUNS": "On nodes {attempts_count} former attempt(s) of the job may still run; the order to end is "
    "given, and the job starts when the end is confirmed.",
    "RESTART_BACKOFF": "Restart {restarts} of at most {restart_limit} follows in {wait_ms}, because the last attempt "
    "ended early.",
    "LAUNCH_REFUSED": "The node agent refused to start the job (refusal {refusals}); it is tried again later.",
    "POLICY_FAILED": "The policy raised an error and decided nothing; choose another policy and report the error "
    "that the scheduler logged.",
    "POLICY_SILENT": "The policy did not answer in time and is not asked any more: what runs goes on, and nothing more "
    "starts until a policy is chosen.",
    "NO_DECISION": "The policy returned no decision about the job; this is a bug of the policy.",
    # held by what was asked of the queue
    "HELD": "The job is held until its owner releases it: `cotenant release`.",
    "AFTER": "The job waits for {jobs_count} other job(s) to end: {jobs}.",
    "ARRAY_LIMIT": "{jobs_max} task(s) of the array may run at once, and earlier ones run or come first.",
    "QUOTA": "The tenant's jobs hold {gpus_held} GPU(s), and may hold {gpus_max} at once; the job waits for one of "
    "them to end.",
    "QUOTA_TOO_SMALL": "The job asks for more GPUs at once than the {gpus_max} that its tenant may hold.",
    "TENANT_CLOSED": "The tenant's quota is 0 GPUs: what runs goes on, and nothing more starts.",
    "FAIR_SHARE": "It is another tenant's turn: for its weight this one has had more GPU time, and its jobs hold "
    "{gpus_held} GPU(s) now.",
    "PROTECTED": "The policy would let {jobs} make room, but a job makes room only for its own tenant, and for its own "
    "class or a higher one.",
    "RESERVED": "Of the {gpus_needed} GPU(s) that the job needs at once, the free ones ({gpus_kept} now) are kept back "
    "for it, with those that jobs leave ({gpus}); the last is expected to be free in {wait_ms}.",
    "RESERVED_FOR_NOW": "Of the {gpus_needed} GPU(s) that the job needs at once, the free ones ({gpus_kept} now) are "
    "kept back for it, with those that jobs leave ({gpus}). How long these jobs run is not known: in {wait_ms} others "
    "may have the GPUs, for an hour.",
    "KEPT_FOR_OTHER": "{gpus_kept} free GPU(s) are kept back for {jobs}, which comes first and needs {gpus_needed} at "
    "once ({gpus}); a job that is expected to end before that one starts gets them.",
    # held by a decision on a snapshot
    "INVALID_ROW": "The job's row holds {violations_count} value(s) that no job can have; the answer's warnings name "
    "them.",
    "NOT_BEFORE": "The job asks not to start within the next {wait_ms}.",
    "REPEATED_ID": "The snapshot has {rows_count} waiting row(s) with this job's id, or one runs under it already, or "
    "the id is empty; give every job an id of its own.",
    "NO_ALLOWED_GPU": "None of the usable GPUs ({gpus_in_cluster}) is of a node and device type that the job may "
    "use: look at its queue, its allowed and excluded nodes, its device types, and at its anti-affinity group.",
    "TOO_MANY_LIMITS": "The jobs of the snapshot may use more than {gpus_sets_max} different sets of GPUs, and one "
    "call decides on so many; ask again once the others run.",
    # a policy lets it wait
    "NO_FREE_GPU": "{gpus_needed} GPU(s) are needed at once and {gpus_free} can be had now; the job waits for others "
    "to end.",
    "CLUSTER_FULL": "None of the usable GPUs ({gpus_in_cluster}) can take another job now.",
    "BEHIND_IN_QUEUE": "The policy keeps the order of submission, and {jobs} waits before this job.",
    "BEHIND_AGED_JOB": "{jobs} was submitted more than {aging_ms} ago, so the policy lets no later job pass it.",
    "GPUS_NOT_IN_CLUSTER": "{gpus_needed} GPU(s) of one kind are needed, but the cluster has {gpus_in_cluster} usable "
    "one(s); ask for fewer GPUs or add nodes.",
    "GANG_NEEDS_MORE_NODES": "The GPUs that the job needs lie on {nodes_needed} nodes, but a job may span {nodes_max}; "
    "ask for fewer GPUs.",
    "NO_SHARED_STORAGE": "The job would be on {nodes_needed} nodes, which neither keep their checkpoints on one shared "
    "storage nor all send them to each other; start their agents with one --checkpoint-dir and --shared-checkpoints, "
    "or all without.",
    "NODES_TOGETHER_TOO_SMALL": "The job may span nodes, and those that go on from each other's checkpoints have "
    "{gpus_in_cluster} usable GPU(s) of one kind together, not {gpus_needed}; start the agents of more nodes likewise, "
    "all with --shared-checkpoints or all without.",
    "DEVICES_NOT_IN_CLUSTER": "Not one usable GPU is of a type that the job names (--device); `cotenant gpus` lists "
    "the types.",
    "NODES_NOT_REACHABLE": "The job would be on {nodes_needed} nodes on several machines, and one says an address that "
    "only itself can reach; start its agent with --rendezvous-host.",
    "SPREAD_UNEVEN": "{gpus_free} GPU(s) are free and {gpus_needed} would do, but the policy spreads a job evenly over "
    "few nodes, which the free GPUs, at most {gpus_on_node} on a node, do not permit; the job waits for others to end.",
    "TASKS_DO_NOT_FIT": "The nodes with free GPUs have too little CPU or host memory left for {workers_count} "
    "worker(s) of {cpu_cores} CPU core(s) and {host_memory_bytes} each, with their parameter servers.",
    "HOST_DOES_NOT_FIT": "No node has {cpu_cores} CPU core(s) and {host_memory_bytes} of host memory left in "
    "addition to the GPU.",
    "MEMORY_EXCEEDS_GPU": "The job needs {needed_bytes}, but the largest usable GPU has {gpu_memory_bytes}; use a "
    "smaller batch or state memory_bytes if you know better.",
    "MEMORY_LIKELY_EXCEEDS_GPU": "The job is predicted to need {needed_bytes}, and the GPU has {gpu_memory_bytes}. The "
    "prediction is not reliable, so the job may be tried alone; use a smaller batch or a larger GPU.",
    "MEMORY_DOES_NOT_FIT": "The job needs {needed_bytes} and {free_bytes} are left of the GPU's {gpu_memory_bytes}.",
    "TOO_MANY_JOBS": "The GPU holds {jobs_on_gpu} job(s), and the policy allows {jobs_on_gpu_max}.",
    "UTILIZATION_TOO_HIGH": "Together the jobs would use {utilization_ratio} of the GPU, and the policy allows "
    "{utilization_max_ratio}.",
    "PEAK_EXCEEDS_GPU": "At the peak of a step the job needs {needed_bytes}, but the GPU has {gpu_memory_bytes}; use a "
    "smaller batch.",
    "PEAKS_DO_NOT_FIT": "With the peaks of their steps the jobs would need {memory_ratio} of the GPU's memory.",
    "COLLISION_TOO_LIKELY": "The jobs' memory peaks would coincide {collision_ratio} of the time, and the policy "
    "allows {collision_max_ratio}.",
    "DEVICE_SLOWDOWN_TOO_HIGH": "The slowdowns of {jobs} by each other job alone would add up to "
    "{pairwise_slowdown_ratio}, and the policy allows {device_slowdown_max_ratio} on any GPU.",
    "WORKERS_OUT_OF_BALANCE": "The slowdowns of the workers of {jobs} would differ by {difference_ratio}, and the "
    "policy allows {difference_max_ratio}.",
    "SHARE_NOT_ALLOWED": "Sharing is refused by {jobs} (share: never).",
    "SLOWDOWN_TOO_HIGH": "Next to {other_jobs}, {first_job} would be slowed down by {slowdown_ratio}, and it accepts "
    "{max_slowdown_ratio} (its max_slowdown).",
    "OUT_OF_DOMAIN": "What is predicted for {jobs} is outside of what the model was trained on, so it is not used to "
    "share a GPU: the job starts alone when one is free. Once each of two jobs was measured alone they may share on "
    "trial; share: any accepts the prediction.",
    "RANGE_NOT_CALIBRATED": "No measurement checked the ranges predicted for {jobs} on this device, so they are not "
    "used to share a GPU: the job starts alone when one is free. Once each of two jobs was measured alone they may "
    "share on trial; share: any accepts them.",
    "PAIR_UNKNOWN": "The slowdowns of {jobs} on a shared GPU are not reliably known: the job starts alone when one "
    "is free. Once each of two jobs was measured alone they may share on trial; share: any accepts the unknown.",
    "JOB_UNKNOWN": "Nothing reliable is predicted for {jobs} on this device, so it runs alone. Once each of "
    "two jobs was measured alone they may share on trial; with a graph it could be predicted before it runs.",
    "TRIAL_GOES_ON": "{jobs} shares the GPU on trial, and no third job joins until that has ended.",
    "GPU_RELEASING": "The GPU is still being released by another job, or a job on it is paused ({gpus}).",
    "GPU_NOT_USABLE": "The GPU is unknown, unhealthy, or its node is not connected ({gpus}).",
    "SHARING_NOT_WORTH_IT": "Sharing a GPU with {jobs}, the jobs would end after {shared_sum_ms} in sum, and after "
    "{waiting_sum_ms} if this job waits.",
    "REMAINING_TIME_UNKNOWN": "How long {jobs} takes is not known, so sharing cannot be weighed and the job "
    "starts alone when a GPU is free. Weighing takes both a number of steps (--steps) and a step time, predicted (a "
    "graph, captured or --graph) or measured alone.",
    "TOO_FEW_PLACES": "The job waits for others to end: {gpus_with_place} GPU(s) could take another job now, but it "
    "needs more, or sharing them is not known to pay; `cotenant explain` weighs each of them.",
    "TOO_MANY_WEIGHED": "Free GPUs do not suffice, and {jobs_weighed_max} shorter jobs found no running job to share "
    "with, so the round looked no further; the policy's weighed_jobs_max is that limit.",
    "STOPS_LONGER": "{jobs} gives up {gpus_needed} GPU(s), because this job needs only {remaining_ms}; it starts when "
    "they have left.",
    "STOPS_MORE_SERVED": "{jobs} gives up {gpus_needed} GPU(s), because this job has had less GPU time "
    "({attained_gpu_ms}) or came first; it starts when they have left.",
    "OTHERS_GAIN_MORE": "The GPUs do more for other jobs; this job waits for the {gpus_needed} that it needs at least.",
    # a policy stops it
    "STOPPED_FOR_LESS_SERVED": "The job is stopped with a checkpoint for {jobs}: it has had {attained_gpu_ms} of GPU "
    "time and comes later in the queues; it goes on when GPUs are free.",
    "STOPPED_FOR_SHORTER": "The job is stopped with a checkpoint for {jobs}, which needs only {remaining_ms}; it goes "
    "on when GPUs are free.",
    "STOPPED_FOR_SLOWDOWN": "Co-located with this job, {jobs} lost {lost_ratio} of its steps per second, and the "
    "policy allows {drop_ratio}; this job came last and waits again.",
    "RESHAPES_OTHER": "{jobs} gives up GPUs, so that this job gets the {gpus_needed} that it needs; it starts when "
    "they are free.",
    "SHARES_GIVEN_AWAY": "Jobs with a smaller share of the cluster come first, and nothing that suffices is left.",
    # a policy moves it
    "RESHAPED_DOWN": "The job goes on with {gpus_count} instead of {gpus_before_count} GPU(s), so that {jobs} can "
    "start.",
    "RESHAPED_UP": "The job goes on with {gpus_count} instead of {gpus_before_count} GPU(s), which were idle: it ends "
    "{saved_ms} sooner.",
    "MIGRATES_FROM_INTERFERENCE": "The job moves to another GPU, because on its old one the slowdown was "
    "{slowdown_before_ratio}; {slowdown_ratio} is expected there ({jobs}).",
    "MIGRATES_FOR_GAIN": "The job moves to another GPU, because on its old one the slowdown was "
    "{slowdown_before_ratio}; {slowdown_ratio} is expected there ({jobs}): the jobs gain {gained_ms}, and the move "
    "costs {cost_ms}.",
    "MOVES_APART": "The job leaves {jobs} for GPUs that are idle ({gpus}): the jobs gain {gained_ms} together, beyond "
    "the {cost_ms} that the move costs.",
    "MOVES_TO_SHARE": "The job moves next to {jobs} on trial, so that a job which must be measured alone can have its "
    "GPU: {gained_ms} are gained, {slowdown_ratio} is expected for this job and {neighbour_slowdown_ratio} for the "
    "other.",
    "STRAGGLER_REPLACED": "For a step of its own rank {rank} took {own_ratio} of the median time of the other ranks, "
    "throughout {slow_ms}; all start again, it where possible on another GPU ({replaced_count} of at most "
    "{replaced_max_count} times).",
    "RESHAPED_TO_SHARE": "The job goes on with {gpus_count} instead of {gpus_before_count} GPU(s), its share of the "
    "cluster.",
    "RESHAPED_BY_GAIN": "The job goes on with {gpus_count} GPU(s) and {servers_count} parameter server(s) instead of "
    "{gpus_before_count} and {servers_before_count}: by its step times it gains most so.",
    "TRIES_SERVERS": "The job goes on with {servers_count} instead of {servers_before_count} parameter server(s), so "
    "that its step time is measured with them before their number is chosen.",
    # a policy starts it
    "STARTS_ALONE": "The job starts with {gpus_count} GPU(s) to itself.",
    "STARTS_ALONE_IN_PASSES": "The job starts with {gpus_count} GPU(s) to itself. All samples of a step at once need "
    "more memory than there is, so each step is made of {accumulation_steps} passes of {micro_batch_size}; "
    "--whole-batch refuses that.",
    "STARTS_ALONE_UNPREDICTED": "The job starts with {gpus_count} GPU(s) to itself, because nothing is predicted for "
    "it.",
    "STARTS_ALONE_PREDICTION_FAILED": "The job starts with {gpus_count} GPU(s) to itself, because the predictor could "
    "not answer.",
    "STARTS_SHARED": "The job shares with {jobs}: expected slowdown {slowdown_ratio} for it and "
    "{neighbour_slowdown_ratio} "
    "at most for the others.",
    "STARTS_SHARED_IN_PASSES": "The job shares with {jobs}, {micro_batch_size} samples per GPU in each of "
    "{accumulation_steps} passes per step: expected slowdown {slowdown_ratio} for it and {neighbour_slowdown_ratio} at "
    "most for the others; --whole-batch refuses that.",
    "STARTS_SHARED_BLINDLY": "The job shares with {jobs} because all of them set share: any; how much they slow each "
    "other down is not known, and of a job that was never measured alone it is not learned while they share.",
    "STARTS_ON_TRIAL": "The job shares with {jobs} on trial, for nothing reliable is predicted of them together: "
    "{slowdown_ratio} is expected for it and {neighbour_slowdown_ratio} for the other. It leaves if a job is slowed "
    "down more than it accepts; --no-trial refuses that.",
    "STARTS_TO_BE_MEASURED": "The job starts next to {jobs}, in the {free_bytes} that it leaves, because it was never "
    "measured and no GPU is free: once it makes steps {jobs} is paused for {paused_max_ms} at most. Then both share on "
    "trial, or this job waits again; --no-trial refuses that.",
    # while it is on trial
    "IS_MEASURED": "The job is measured while {jobs} is paused, for {paused_max_ms} at most.",
    "MEASURED_APART": "The job was measured while the other one was paused, and they would not keep what they accept: "
    "{first_job} would be slowed down by {slowdown_ratio}, and it accepts {max_slowdown_ratio}. The job waits again.",
    "NOT_MEASURED_IN_TIME": "The job was to be measured next to {jobs}, and made no step in time that could be. It "
    "waits until it can be measured alone.",
    "ON_TRIAL": "The job is on trial with {jobs} until {until_at_ms}: slowdown {slowdown_ratio} +- {spread_ratio} of "
    "{max_slowdown_ratio} allowed.",
    "TRIAL_PASSED": "The job shares with {jobs} and has passed its trial: slowdown {slowdown_ratio} +- {spread_ratio} "
    "of {max_slowdown_ratio} allowed.",
    "TRIAL_BROKEN": "The trial is over: next to {other_jobs}, {first_job} was slowed down by {slowdown_ratio}, and it "
    "accepts {max_slowdown_ratio}. The later one goes on elsewhere from its checkpoint, and the pair is not tried "
    "again for a day.",
    "TRIAL_MEMORY": "The trial is over: the memory of {jobs} has grown to {needed_bytes} and the other job leaves "
    "{free_bytes}. The later one goes on elsewhere from its checkpoint.",
    "TRIAL_UNMEASURED": "The trial with {jobs} is over, because one of the two made no step that could be measured. "
    "The later one goes on elsewhere from its checkpoint.",
    "CANDIDATE": "The GPU can take the job.",
    # dropped by the plan check
    "JOB_NOT_PENDING": "The policy decided about a job that is not waiting.",
    "JOB_NOT_RUNNING": "The policy wanted to stop or pause a job that does not run.",
    "JOB_NOT_PAUSED": "The policy wanted to let a job go on that is not paused, or was told to go on already.",
    "ALREADY_PAUSED": "The policy wanted to pause a job of which a pause was ordered already.",
    "PAUSE_TOO_LONG": "The policy wanted to pause a job for {paused_max_ms}; 1 ms to {longest_ms} is possible.",
    "NOT_PAUSABLE": "A job on {gpus_count} GPU(s) cannot be paused here: only one without MPS can, where the agent of "
    "each of its nodes says so; stop it with a checkpoint instead.",
    "DECIDED_TWICE": "The policy decided twice about the job; the first decision counts.",
    "DECISION_NOT_SUPPORTED": "The policy returned a kind of decision that the scheduler does not support.",
    "MOVES_NOT_SUPPORTED": "The policy wanted to move or reshape a running job, which no launcher supports here; the "
    "job runs on where it is.",
    "KNOWN_TOGETHER": "The policy wanted to measure the job next to {jobs}, and it is known already that the two may "
    "share.",
    "NOTHING_TO_MOVE": "The policy wanted to move a running job to where it is.",
    "SERVERS_NOT_ALLOWED": "The policy gave {servers_given_count} parameter server(s), which the job does not allow.",
    "GANG_INCOMPLETE": "The policy gave {gpus_given} GPU(s) to a job that needs {gpus_needed}.",
    "RANKS_WRONG": "The policy repeated a GPU or numbered the ranks of {gpus_given} GPU(s) wrongly.",
    "BATCH_NOT_CUT": "The policy wanted {accumulation_steps} pass(es) per step of a job whose program cuts no batch.",
    "BATCH_NOT_COVERED": "The policy's micro-batches cover {given_samples} of the batch's {batch_samples} samples.",
    "MIXED_DEVICES": "The policy mixed different kinds of GPUs, or slices of GPUs, in one job ({gpus}).",
    "DEVICE_NOT_ALLOWED": "The job names the devices that it may run on, and the GPU is none of these ({gpus}).",
    # while it is paused
    "PAUSED_BY_OPERATOR": "An operator paused the job; it goes on by itself when the pause is over.",
    "PAUSED_FOR_MEASUREMENT": "The job is paused for {paused_max_ms} at most, while {jobs} is measured next to it; its "
    "memory stays its own.",
    "PAUSE_UNWANTED": "The node had paused the job although no pause was wanted any more; it was told to go on.",
    "PEAKS_NEAR": "The job is paused: the memory of {jobs} is at a peak, and with its own peak {needed_bytes} of "
    "{gpu_memory_bytes} would be needed. It goes on when that peak is over.",
    # while it ends
    "PEAKS_COINCIDED": "The job is being stopped with a checkpoint, because its peak of memory and that of {jobs} came "
    "at once: {needed_bytes} of {gpu_memory_bytes} may be needed. It came last and goes on later or elsewhere.",
    "PEAK_TOO_LONG": "The job is being stopped with a checkpoint: it was paused for the peak of {jobs}, which lasted, "
    "and with its own {needed_bytes} of {gpu_memory_bytes} would be needed.",
    "STOPPING_TO_CANCEL": "The job is being stopped because it was cancelled.",
    "STOPPING_TO_REQUEUE": "The job is being stopped, with a checkpoint, to run again later.",
    "STOPPING_WITH_GANG": "One part of the job has ended, so its parts on the other nodes are being stopped, with a "
    "checkpoint.",
    "STOPPING_TO_HOLD": "The job is being stopped, after an order for a checkpoint, and then waits until it is "
    "released.",
    "STOPPING_AT_TIME_LIMIT": "The job is being stopped with a checkpoint: it has run for {ran_ms} of {time_limit_ms} "
    "allowed.",
    "STALLED": "The job is being restarted from its checkpoint: no step came for {idle_ms}.",
    "DRAINED": "The job is being stopped, after an order for a checkpoint, because its node is drained; it goes on "
    "elsewhere.",
    # after an attempt
    "MOVE_WITHDRAWN": "The job goes on where it is: the attempt that was prepared for its move ended early; its next "
    "move begins without preparation.",
    "MOVE_TARGET_GONE": "The GPUs that were kept for the job ({gpus}) were lost while it stopped; it goes on from its "
    "checkpoint when others are free.",
    "PEAKS_MET": "The job gave its GPUs up because of the memory that it and {jobs} need at their peaks; it goes on "
    "from its checkpoint after {wait_ms}.",
    "PREEMPTED": "The job gave its GPUs up and waits to go on from its checkpoint.",
    "ATTEMPT_LOST": "The node or the job's shim was lost; the job goes on from its last checkpoint.",
    "ATTEMPT_FENCED": "The attempt ended itself because its lease had run out; the job goes on from its checkpoint.",
    "ATTEMPT_COMMUNICATION": "The job's processes lost each other; it goes on from its last checkpoint.",
    "ATTEMPT_HOST_OOM": "The host ran out of memory; the job is tried again. State host_memory to be placed better.",
    "ATTEMPT_GPU_FAULT": "The GPU failed; the job goes on from its last checkpoint on another one.",
    "ATTEMPT_SIGNAL": "The process was killed by a signal; the job goes on from its last checkpoint.",
    "ATTEMPT_STOPPED": "The process was stopped from outside the scheduler; the job goes on from its last checkpoint.",
    "ATTEMPT_CHECKPOINTED": "The process checkpointed and ended by itself; the job goes on from there.",
    "ATTEMPT_STALLED": "The job made no step any more; it goes on from its last checkpoint.",
    "OUT_OF_MEMORY_RETRY": "The GPU ({gpu_memory_bytes}) ran out of memory at {memory_peak_bytes}; the job is tried "
    "again "
    "where more is left.",
    "OUT_OF_MEMORY_HALVED": "Alone on a GPU of {gpu_memory_bytes} the job ran out of memory; it is tried with half of "
    "the micro-batch, {micro_batch_size} samples at once (share: never refuses that).",
    "OUT_OF_MEMORY_LARGER_GPU": "Alone on a GPU of {gpu_memory_bytes} the job ran out of memory; it is tried on a "
    "larger one.",
    # the end
    "FINISHED": "The program ended with success, and the job is done.",
    "FINISHED_UNCOUNTED": "The program ended with success. It reported no step and none was recognised in what it "
    "printed (--progress-regex says how, or cotenant/job.py), so nothing is known of its pace. Anything that "
    "it left in the background ended with it.",
    "FINISHED_EARLY": "The program ended with success after {steps_done} of {steps_total} steps, as far as it "
    "reported: it ended early, or the number of steps that was stated (--steps, or total= of job.report) is too "
    "large. Anything that it left in the background ended with it.",
    "FINISHED_BEYOND": "The program ended with success after {steps_done} steps, and {steps_total} were stated, by "
    "--steps or by what a capture found planned (for the first of several trainings, say); state --steps, because "
    "waiting times are expected by it, or say with --accumulation how many batches of its output make a step.",
    "FINISHED_WITH_TARGET": "The program ended with success after {steps_done} steps; its loss was to end it "
    "(--target-loss).",
    "CANCELLED": "The job was cancelled.",
    "PARENT_FAILED": "The job was to start after {jobs}, which did not succeed; --after-any waits for any end.",
    "TIME_LIMIT": "The job had run for its time limit, {time_limit_ms}, and was stopped, after an order for a "
    "checkpoint.",
    "JOB_ERROR": "The program ended with exit code {exit_code}; see its log.",
    "OUT_OF_MEMORY": "Alone on a GPU of {gpu_memory_bytes} the job ran out of memory twice; use a smaller batch or a "
    "larger "
    "GPU.",
    "RESTART_LIMIT": "The job was restarted {restarts} time(s), as often as its limit of {restart_limit} allows; raise "
    "restart_limit or see the last exit class.",
    "LAUNCH_REFUSED_FOR_GOOD": "The node agent refused to start the job ({refusals} refusal(s)); asking "
    "again would not help.",
}
"""The registered codes -> their sentences; {name} stands for a number of the reason, {jobs} and {gpus} for its ids.

{first_job} and {other_jobs} are those of `jobs` where the sentence is about the first of them.

A reason must bring whatever its sentence names (`tests/support/policy_contract.py`); further numbers are welcome.
"""

_NAMED_IDS_MAX = 4
_TENTH_OF_SECOND_MS = 100
_MINUTE_MS = 60_000
_UNITS = (("d", "h", 86_400_000, 3_600_000), ("h", "m", 3_600_000, 60_000), ("m", "s", 60_000, 1_000))


class _Fields(dict[str, str]):
    """A number that a reason lacks reads as unknown instead of failing."""

    def __missing__(self, name: str) -> str:
        return "an unknown number"


_UNSAVED = " It has written no checkpoint so far: unless its script writes one now, {what} would be lost."
_UNSAVED_STEPS = "{unsaved_steps} step(s) made in {unsaved_ms}"
_UNSAVED_WORK = "{unsaved_ms} of work"
_LOST = " It had written no checkpoint: {lost_steps} step(s) were lost."
_WAYS = " GPUs of this type are shared in {ways_count} ways (MPS, in turns, or not said): what is expected is of "
_WAYS_HERE = ("those that do not say how.", "those that take turns, as here.", "those with MPS, as here.")
_SLICES = " Of its {slices_count} slice(s) of GPUs (MIG) a process can use one, so no job gets two."
_NO_GPU = (
    "Not one GPU is usable now, and {gpus_needed} GPU(s) are needed: the nodes are away, cordoned or have faults; "
    "`cotenant nodes` shows which."
)


def has_no_gpu(reason: Reason) -> bool:
    """Return whether GPUs are missing because not one is usable, as after a restart until nodes are back."""
    return reason.code == "GPUS_NOT_IN_CLUSTER" and not reason.numbers.get("gpus_in_cluster", 1)


def describe_reason(reason: Reason) -> str:
    """Return a reason as an English sentence with its numbers and, where there is one, the remedy."""
    text = _NO_GPU if has_no_gpu(reason) else REASON_TEXTS.get(reason.code)
    if text is None:
        return reason.code
    text += _of_unsaved_work(reason.numbers)
    text += _of_ways(reason.numbers)
    text += _SLICES if "slices_count" in reason.numbers else ""
    numbers = {name: format_quantity(name, value) for name, value in reason.numbers.items()}
    ids = {"jobs": reason.job_ids, "first_job": reason.job_ids[:1], "other_jobs": reason.job_ids[1:]}
    named = {name: _named(some) for name, some in {**ids, "gpus": reason.gpu_ids}.items()}
    return agreed(text.format_map(_Fields(numbers | named)))


def _of_ways(numbers: Mapping[str, float]) -> str:
    """Return to which of several ways of sharing a slowdown belongs; earlier versions asked about all together."""
    if "ways_count" not in numbers:
        return ""
    here = int(numbers.get("way_here", -1))
    return _WAYS + (_WAYS_HERE[here] if 0 <= here < len(_WAYS_HERE) else "each of them or of all together.")


def _of_unsaved_work(numbers: Mapping[str, float]) -> str:
    """Return what a stop takes, or has taken, from a job without a checkpoint; steps where some were read off it."""
    if "unsaved_ms" in numbers:
        return _UNSAVED.replace("{what}", _UNSAVED_STEPS if numbers.get("unsaved_steps") else _UNSAVED_WORK)
    return _LOST if "lost_steps" in numbers else ""


def format_quantity(name: str, value: float) -> str:
    """Return a number with the unit that ends its name: ratios as percent, bytes in GiB, milliseconds as a time."""
    if name.endswith("_ratio"):
        return f"{value * 100:.1f} %"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name.endswith("_at_ms"):
        minutes = int(value) // 60_000 % 1_440
        return f"{minutes // 60:02d}:{minutes % 60:02d} UTC"
    if name.endswith("_ms"):
        return _duration(value)
    return f"{value:g}"


def _duration(value_ms: float) -> str:
    """Return seconds, or a few milliseconds; from a minute on two units, as `--time-limit` is written: 1h30m, or 1h."""
    if 0 < value_ms < _TENTH_OF_SECOND_MS:
        return f"{value_ms:.3g} ms"
    if not _MINUTE_MS <= value_ms < inf:
        return f"{value_ms / 1_000:.1f} s"
    for large, small, large_ms, small_ms in _UNITS:
        count = round(value_ms / small_ms)
        if count * small_ms >= large_ms:
            whole, rest = divmod(count, large_ms // small_ms)
            return f"{whole}{large}{rest}{small}" if rest else f"{whole}{large}"
    return f"{value_ms / 1_000:.1f} s"


def _named(ids: tuple[str, ...]) -> str:
    shown = ", ".join(ids[:_NAMED_IDS_MAX])
    return f"{shown} and {len(ids) - _NAMED_IDS_MAX} more" if len(ids) > _NAMED_IDS_MAX else shown or "no job"
