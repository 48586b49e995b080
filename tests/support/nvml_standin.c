/* A STAND-IN for NVIDIA's management library: no GPU is behind it, and none of its figures is measured.

Two devices that answer differently; the second is divided into two MIG instances. Built by the tests as
libnvidia-ml.so.1. The environment makes it fail:

  NVML_STANDIN_FAIL   FUNCTION=CODE or FUNCTION:DEVICE=CODE, separated by commas: return that error
  NVML_STANDIN_HANG   FUNCTION:DEVICE: never return
  NVML_STANDIN_SINCE  a path: nothing fails or hangs before a file is there
  NVML_STANDIN_PIDS   a file of lines "DEVICE PID BYTES": the processes that have memory

Compiled with -DOLD_DRIVER it lacks what newer drivers brought. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { DEVICES = 2, MIG_SLOTS = 3 };

typedef struct {
    int index, instance;
    const char *uuid, *name;
    unsigned util, memory_util, power_mw, sm_mhz, memory_mhz, temperature, tx_kib, rx_kib;
    unsigned long long total, used, reasons;
} Device;

#define GIB (1ULL << 30)
static Device devices[DEVICES] = {
    {0, -1, "GPU-stand-in-0", "Stand-in A", 80, 30, 300000, 1500, 2600, 60, 2048, 4096, 80 * GIB, 4 * GIB, 0x4},
    {1, -1, "GPU-stand-in-1", "Stand-in B", 40, 10, 100000, 1200, 1600, 45, 1024, 512, 40 * GIB, 2 * GIB, 0x1},
};
static Device instances[MIG_SLOTS] = {
    {1, 0, "MIG-stand-in-1-0", "Stand-in B MIG 1g", .total = 10 * GIB, .used = 1 * GIB},
    {0}, /* an empty slot */
    {1, 2, "MIG-stand-in-1-2", "Stand-in B MIG 2g", .total = 20 * GIB, .used = 1 * GIB},
};

static unsigned long long now_us(void)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    return now.tv_sec * 1000000ULL + now.tv_usec;
}

/* Whether WORD, as FUNCTION or FUNCTION:DEVICE, begins ENTRY; END is what must follow. */
static int names(const char *entry, const char *function, const Device *device, char end)
{
    size_t length = strlen(function);
    if (strncmp(entry, function, length))
        return 0;
    entry += length;
    if (*entry == ':') {
        char *rest;
        long index = strtol(entry + 1, &rest, 10);
        if (!device || index != device->index)
            return 0;
        entry = rest;
    }
    return *entry == end;
}

static int trouble(const char *function, const Device *device)
{
    const char *hang = getenv("NVML_STANDIN_HANG"), *entry = getenv("NVML_STANDIN_FAIL");
    const char *since = getenv("NVML_STANDIN_SINCE");
    if (since && access(since, F_OK))
        return SUCCESS;
    if (hang && names(hang, function, device, '\0'))
        for (;;)
            pause();
    for (; entry; entry = strchr(entry, ',') ? strchr(entry, ',') + 1 : NULL)
        if (names(entry, function, device, '='))
            return atoi(strchr(entry, '=') + 1);
    return SUCCESS;
}

#define FAIL_AS_ASKED(device)                     \
    do {                                          \
        int code = trouble(__func__, (device));   \
        if (code)                                 \
            return code;                          \
    } while (0)
#define WHOLE_ALONE(device)          \
    do {                             \
        FAIL_AS_ASKED(device);       \
        if ((device)->instance >= 0) \
            return NOT_SUPPORTED;    \
    } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; FAIL_AS_ASKED(NULL); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "stand-in"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { FAIL_AS_ASKED(NULL); *count = DEVICES; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    if (index >= DEVICES)
        return INVALID_ARGUMENT;
    FAIL_AS_ASKED(&devices[index]);
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size)
{
    FAIL_AS_ASKED(device);
    snprintf(text, size, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned size)
{
    FAIL_AS_ASKED(device);
    snprintf(text, size, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending)
{
    FAIL_AS_ASKED(device);
    if (device->index == 0)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count)
{
    *count = device->index == 1 ? MIG_SLOTS : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **instance)
{
    FAIL_AS_ASKED(device);
    if (index >= MIG_SLOTS || !instances[index].uuid)
        return NOT_FOUND;
    *instance = &instances[index];
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates)
{
    WHOLE_ALONE(device);
    rates->gpu = device->util;
    rates->memory = device->memory_util;
    return SUCCESS;
}

/* The first version counts what the driver reserves (1 GiB here) as used. */
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory)
{
    FAIL_AS_ASKED(device);
    memory->total = device->total;
    memory->used = device->used + GIB;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts)
{
    WHOLE_ALONE(device);
    *milliwatts = device->power_mw;
    return SUCCESS;
}

/* Grows at the device's power, as the real one does since the driver was loaded. */
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules)
{
    WHOLE_ALONE(device);
    *millijoules = (now_us() / 1000 % 1000000000ULL) * device->power_mw / 1000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *mhz)
{
    WHOLE_ALONE(device);
    *mhz = kind == 1 ? device->sm_mhz : device->memory_mhz;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius)
{
    (void)sensor;
    WHOLE_ALONE(device);
    *celsius = device->temperature;
    return SUCCESS;
}

int nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned *kib_per_s)
{
    WHOLE_ALONE(device);
    usleep(20000);
    *kib_per_s = counter == 0 ? device->tx_kib : device->rx_kib;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons)
{
    WHOLE_ALONE(device);
    *reasons = device->reasons;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons)
{
    WHOLE_ALONE(device);
    *reasons = device->reasons;
    return SUCCESS;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *memory)
{
    FAIL_AS_ASKED(device);
    memory->total = device->total;
    memory->reserved = GIB;
    memory->used = device->used;
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}
#endif

/* Utilisation every 200 ms, in turn half and one and a half of the mean on the second device. */
typedef struct { unsigned long long time_us; union { double d; unsigned ui; unsigned long long ull; } value; } Sample;
int nvmlDeviceGetSamples(Device *device, int kind, unsigned long long seen_us, int *type, unsigned *count, Sample *samples)
{
    WHOLE_ALONE(device);
    if (kind > 2 || (kind != 1 && device->index == 1))
        return NOT_SUPPORTED;
    const unsigned long long period = kind ? 200000 : 100000;
    const unsigned long long last = now_us() / period;
    unsigned long long first = last - 100;
    if (seen_us / period >= first)
        first = seen_us / period + 1;
    if (first > last)
        return NOT_FOUND;
    *type = 1;
    unsigned found = (unsigned)(last - first + 1);
    if (samples) {
        if (found > *count)
            found = *count;
        for (unsigned i = 0; i < found; i++) {
            unsigned half = device->util / 2;
            samples[i].time_us = (first + i) * period;
            samples[i].value.ull = 0;
            samples[i].value.ui = kind == 0 ? device->power_mw
                : kind == 2             ? device->memory_util
                : device->index == 0        ? device->util
                : (first + i) % 2           ? device->util + half
                                            : device->util - half;
        }
    }
    *count = found;
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } ProcessInfo;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *processes)
{
    FAIL_AS_ASKED(device);
    unsigned room = processes ? *count : 0, found = 0, pid;
    int index;
    unsigned long long used;
    const char *path = getenv("NVML_STANDIN_PIDS");
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && fscanf(file, "%d %u %llu", &index, &pid, &used) == 3) {
        if (index != device->index || device->instance >= 0)
            continue;
        if (found < room)
            processes[found] = (ProcessInfo){pid, used, ~0u, ~0u};
        found++;
    }
    if (file)
        fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
