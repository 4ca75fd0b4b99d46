/* A stand-in for NVIDIA's management library, for tests of the agent on machines without a GPU.
 *
 * It knows nothing of its own: every call reads the text file named by FAKE_NVML_STATE again, so that a test changes
 * the machine by writing a file. One word per kind of line:
 *
 *   gpu UUID NAME TOTAL_BYTES USED_BYTES UTILIZATION_PERCENT MILLIWATTS
 *   slice UUID NAME TOTAL_BYTES USED_BYTES GPU   (of a GPU that is in MIG mode; by the GPU's UUID)
 *   mig UUID                                     (the GPU is in MIG mode)
 *   process UUID PID USED_BYTES SM_PERCENT       (USED_BYTES -1: the driver does not report it)
 *   lost UUID                                    (the device has fallen off the bus)
 *   unsupported FUNCTION                         (that call answers "not supported")
 *   broken DRIVER                                (every call fails, with this code where it is a number)
 *   now MICROSECONDS                             (time stamp of all samples)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15
};

#define LIMIT 16

typedef struct {
    char uuid[96], name[96], parent[96];
    unsigned long long total, used;
    unsigned int utilization, milliwatts;
    int lost, mig;
} Gpu;

typedef struct {
    char uuid[96];
    unsigned int pid;
    long long used;
    unsigned int sm;
} Process;

typedef struct {
    Gpu gpus[LIMIT], slices[LIMIT];
    Process processes[LIMIT];
    char unsupported[LIMIT][96];
    int gpu_count, slice_count, process_count, unsupported_count, broken;
    unsigned long long now_us;
} State;

typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm, memory, encoder, decoder;
} ProcessSample;

typedef struct {
    unsigned long long time_us;
    union {
        double as_double;
        unsigned int as_unsigned;
        unsigned long long as_long;
    } value;
} Sample;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned int gpu, memory;
} Utilization;

static char handles[LIMIT][96], slice_handles[LIMIT][96];

static State read_state(void)
{
    State state;
    char line[512], first[96];
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(&state, 0, sizeof state);
    if (!file)
        return state;
    while (fgets(line, sizeof line, file)) {
        Gpu *gpu = &state.gpus[state.gpu_count % LIMIT];
        Gpu *slice = &state.slices[state.slice_count % LIMIT];
        Process *process = &state.processes[state.process_count % LIMIT];
        if (sscanf(line, "gpu %95s %95s %llu %llu %u %u", gpu->uuid, gpu->name, &gpu->total, &gpu->used,
                   &gpu->utilization, &gpu->milliwatts) == 6)
            state.gpu_count++;
        else if (sscanf(line, "slice %95s %95s %llu %llu %95s", slice->uuid, slice->name, &slice->total, &slice->used,
                        slice->parent) == 5)
            state.slice_count++;
        else if (sscanf(line, "mig %95s", first) == 1) {
            for (int i = 0; i < state.gpu_count; i++)
                if (!strcmp(state.gpus[i].uuid, first))
                    state.gpus[i].mig = 1;
        } else if (sscanf(line, "process %95s %u %lld %u", process->uuid, &process->pid, &process->used,
                        &process->sm) == 4)
            state.process_count++;
        else if (sscanf(line, "unsupported %95s", first) == 1)
            strcpy(state.unsupported[state.unsupported_count++ % LIMIT], first);
        else if (sscanf(line, "broken %95s", first) == 1)
            state.broken = atoi(first) ? atoi(first) : DRIVER_NOT_LOADED;
        else if (sscanf(line, "lost %95s", first) == 1) {
            for (int i = 0; i < state.gpu_count; i++)
                if (!strcmp(state.gpus[i].uuid, first))
                    state.gpus[i].lost = 1;
        } else
            sscanf(line, "now %llu", &state.now_us);
    }
    fclose(file);
    return state;
}

/* The device behind a handle, or the reason why a call on it fails. */
static int look_up(const char *function, void *device, State *state, Gpu **found)
{
    *state = read_state();
    if (state->broken)
        return state->broken;
    for (int i = 0; i < state->unsupported_count; i++)
        if (!strcmp(state->unsupported[i], function))
            return NOT_SUPPORTED;
    for (int i = 0; i < state->gpu_count; i++)
        if (!strcmp(state->gpus[i].uuid, (const char *)device)) {
            *found = &state->gpus[i];
            return state->gpus[i].lost ? GPU_IS_LOST : SUCCESS;
        }
    for (int i = 0; i < state->slice_count; i++)
        if (!strcmp(state->slices[i].uuid, (const char *)device)) {
            *found = &state->slices[i];
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

#define LOOK_UP(device) \
    State state; \
    Gpu *gpu = NULL; \
    int result = look_up(__func__, device, &state, &gpu); \
    if (result != SUCCESS) \
    return result

#define LOOK_UP_WHOLE(device) \
    LOOK_UP(device); \
    if (gpu->parent[0]) \
    return NOT_SUPPORTED

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return read_state().broken;
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    return code == GPU_IS_LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "error of the fake library";
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = (unsigned int)read_state().gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    State state = read_state();
    if ((int)index >= state.gpu_count)
        return INVALID_ARGUMENT;
    strcpy(handles[index], state.gpus[index].uuid);
    *device = handles[index];
    return state.gpus[index].lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    State state = read_state();
    if (state.broken)
        return state.broken;
    for (int i = 0; i < state.gpu_count; i++)
        if (!strcmp(state.gpus[i].uuid, uuid))
            return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    for (int i = 0; i < state.slice_count; i++)
        if (!strcmp(state.slices[i].uuid, uuid)) {
            strcpy(slice_handles[i], uuid);
            *device = slice_handles[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
    LOOK_UP_WHOLE(device);
    *current = *pending = (unsigned int)gpu->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count)
{
    LOOK_UP_WHOLE(device);
    *count = 7;
    return SUCCESS;
}

/* Places without a slice are not at the end: a slice is at its place in the file among those of all GPUs. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **slice)
{
    LOOK_UP_WHOLE(device);
    if ((int)index >= state.slice_count || strcmp(state.slices[index].parent, gpu->uuid))
        return NOT_FOUND;
    return nvmlDeviceGetHandleByUUID(state.slices[index].uuid, slice);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length)
{
    LOOK_UP(device);
    snprintf(uuid, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int length)
{
    LOOK_UP(device);
    snprintf(name, length, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory)
{
    LOOK_UP(device);
    memory->total = gpu->total;
    memory->used = gpu->used;
    memory->free = gpu->total - gpu->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *utilization)
{
    LOOK_UP_WHOLE(device);
    utilization->gpu = gpu->utilization;
    utilization->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts)
{
    LOOK_UP_WHOLE(device);
    *milliwatts = gpu->milliwatts;
    return SUCCESS;
}

int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since_us, int *value_type, unsigned int *count,
                         Sample *samples)
{
    LOOK_UP_WHOLE(device);
    (void)kind;
    if (state.now_us <= since_us)
        return NOT_FOUND;
    *value_type = 1;
    *count = 1;
    if (samples) {
        samples[0].time_us = state.now_us;
        samples[0].value.as_unsigned = gpu->utilization;
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, ProcessInfo *infos)
{
    unsigned int room = *count, needed = 0;
    LOOK_UP(device);
    for (int i = 0; i < state.process_count; i++) {
        Process *process = &state.processes[i];
        if (strcmp(process->uuid, gpu->uuid))
            continue;
        if (needed < room) {
            infos[needed].pid = process->pid;
            infos[needed].used = process->used < 0 ? ~0ULL : (unsigned long long)process->used;
            infos[needed].gpu_instance = infos[needed].compute_instance = 0xFFFFFFFF;
        }
        needed++;
    }
    *count = needed;
    return needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetProcessUtilization(void *device, ProcessSample *samples, unsigned int *count,
                                    unsigned long long since_us)
{
    unsigned int room = samples ? *count : 0, needed = 0;
    LOOK_UP_WHOLE(device);
    for (int i = 0; i < state.process_count; i++) {
        Process *process = &state.processes[i];
        if (strcmp(process->uuid, gpu->uuid) || process->sm == 0 || state.now_us <= since_us)
            continue;
        if (needed < room) {
            memset(&samples[needed], 0, sizeof samples[needed]);
            samples[needed].pid = process->pid;
            samples[needed].time_us = state.now_us;
            samples[needed].sm = process->sm;
        }
        needed++;
    }
    *count = needed;
    if (needed == 0)
        return NOT_FOUND;
    return needed > room ? INSUFFICIENT_SIZE : SUCCESS;
}
