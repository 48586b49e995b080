/* A stand-in for Level Zero's Sysman, to be loaded as libze_loader.so.1: one device of two tiles, whose counters
 * grow by one step a call. Structures are those of zes_api.h 1.15. Nothing that it says was measured on a GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t result;
typedef void *handle;
enum { FINE = 0, UNINITIALIZED = 0x78000001, UNSUPPORTED = 0x78000003 };

typedef struct { int32_t stype; void *next; int32_t type; uint32_t vendor, device, flags, subdevice, clock;
    uint64_t allocation; uint32_t contexts, priority, threads, width, units, subslices, slices; uint64_t resolution;
    uint32_t bits, kernel_bits; uint8_t uuid[16]; char name[256]; } Core;
typedef struct { int32_t stype; void *next; Core core; uint32_t subdevices;
    char serial[64], board[64], brand[64], model[64], vendor[64], driver[64]; } Properties;
typedef struct { int32_t gen, width; int64_t most; } Speed;
typedef struct { int32_t stype; void *next; uint32_t domain, bus, device, function; Speed speed; uint8_t have[3]; } Bus;
typedef struct { uint64_t time, replays, packets, received, sent; Speed speed; } BusStats;
typedef struct { int32_t stype; void *next; uint32_t pid; uint64_t size, shared; uint32_t engines; } Process;
typedef struct { int32_t stype; void *next; int32_t type; uint8_t on_tile; uint32_t tile; int32_t location;
    uint64_t size; int32_t width, channels; } MemoryProperties;
typedef struct { int32_t stype; const void *next; int32_t health; uint64_t free, size; } MemoryState;
typedef struct { int32_t stype; void *next; uint8_t on_tile; uint32_t tile; uint8_t control, threshold;
    int32_t limit, least, most; } PowerProperties;
typedef struct { uint64_t energy, time; } Energy;
typedef struct { int32_t stype; void *next; int32_t type; uint8_t on_tile; uint32_t tile; uint8_t control, event;
    double least, most; } ClockProperties;
typedef struct { int32_t stype; const void *next; double volts, request, tdp, efficient, actual; uint32_t reasons; } Clock;
typedef struct { int32_t stype; void *next; int32_t type; uint8_t on_tile; uint32_t tile; double most;
    uint8_t supported[3]; } SensorProperties;
typedef struct { int32_t stype; void *next; uint32_t type; uint8_t on_tile; uint32_t tile; } EngineProperties;
typedef struct { uint64_t active, time; } Activity;

static uint64_t turn[8];
static int number(handle of) { return (int)(intptr_t)of - 1; }

static result give(uint32_t *count, handle *found, uint32_t there) {
    if (found)
        for (uint32_t i = 0; i < *count && i < there; i++) found[i] = (handle)(intptr_t)(i + 1);
    *count = there;
    return FINE;
}

/* A process that asks for it must be a sidecar: its environment alone has this. */
result zesInit(uint32_t flags) {
    (void)flags;
    const char *enabled = getenv("ZES_ENABLE_SYSMAN");
    return enabled && !strcmp(enabled, "1") ? FINE : UNINITIALIZED;
}
result zesDriverGet(uint32_t *count, handle *found) { return give(count, found, 1); }
result zesDeviceGet(handle driver, uint32_t *count, handle *found) { (void)driver; return give(count, found, 1); }
result zesDeviceGetProperties(handle device, Properties *found) {
    (void)device;
    if (found->stype != 1) return UNSUPPORTED;
    for (int i = 0; i < 16; i++) found->core.uuid[i] = (uint8_t)i;
    snprintf(found->core.name, sizeof found->core.name, "Intel(R) Data Center GPU Max 1550");
    found->subdevices = 2;
    return FINE;
}
result zesDevicePciGetProperties(handle device, Bus *found) { (void)device; found->bus = 0x18; return FINE; }
result zesDevicePciGetStats(handle device, BusStats *found) {
    (void)device;
    uint64_t at = ++turn[0];
    found->time = at * 1000000; found->received = at * 3000000; found->sent = at * 1000000;
    return FINE;
}
result zesDeviceProcessesGetState(handle device, uint32_t *count, Process *found) {
    (void)device;
    if (found) { found->pid = 4242; found->size = 1 << 30; }
    *count = 1;
    return FINE;
}
result zesDeviceEnumMemoryModules(handle device, uint32_t *count, handle *found) { (void)device; return give(count, found, 2); }
result zesMemoryGetProperties(handle of, MemoryProperties *found) {
    found->on_tile = 1; found->tile = (uint32_t)number(of); found->location = 1; found->size = 64ULL << 30;
    return FINE;
}
result zesMemoryGetState(handle of, MemoryState *found) {
    found->size = 60ULL << 30; found->free = (60ULL - 10 * (uint64_t)(number(of) + 1)) << 30;
    return FINE;
}
/* The card, then its two tiles. */
result zesDeviceEnumPowerDomains(handle device, uint32_t *count, handle *found) { (void)device; return give(count, found, 3); }
result zesPowerGetProperties(handle of, PowerProperties *found) {
    found->on_tile = number(of) > 0; found->tile = number(of) > 0 ? (uint32_t)number(of) - 1 : 0;
    return FINE;
}
result zesPowerGetEnergyCounter(handle of, Energy *found) {
    if (number(of)) return UNSUPPORTED;
    uint64_t at = ++turn[1];
    found->time = at * 500000; found->energy = 1000000000 + at * 200000000;
    return FINE;
}
result zesDeviceEnumFrequencyDomains(handle device, uint32_t *count, handle *found) { (void)device; return give(count, found, 4); }
result zesFrequencyGetProperties(handle of, ClockProperties *found) {
    found->type = number(of) / 2; found->on_tile = 1; found->tile = (uint32_t)number(of) % 2;
    return FINE;
}
result zesFrequencyGetState(handle of, Clock *found) {
    found->actual = number(of) / 2 ? -1 : 1400 + 200 * number(of);
    found->reasons = number(of) == 1 ? 1 << 3 : 0; /* too hot */
    return FINE;
}
result zesDeviceEnumTemperatureSensors(handle device, uint32_t *count, handle *found) { (void)device; return give(count, found, 2); }
result zesTemperatureGetProperties(handle of, SensorProperties *found) {
    found->type = 1; found->on_tile = 1; found->tile = (uint32_t)number(of);
    return FINE;
}
result zesTemperatureGetState(handle of, double *found) { *found = 50 + 10 * number(of); return FINE; }
result zesDeviceEnumEngineGroups(handle device, uint32_t *count, handle *found) { (void)device; return give(count, found, 3); }
result zesEngineGetProperties(handle of, EngineProperties *found) {
    found->type = number(of) < 2 ? 1 : 3; found->on_tile = 1; found->tile = (uint32_t)number(of) % 2;
    return FINE;
}
result zesEngineGetActivity(handle of, Activity *found) {
    uint64_t at = ++turn[2 + number(of)];
    found->time = at * 1000; found->active = at * (number(of) ? 500 : 1000);
    return FINE;
}
