/* In the place of Vulkan's loader (LD_PRELOAD): a device that is lost, or out of memory, as soon as a test says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

int lost = 0; /* whether submitting work fails */
int full = 0; /* whether allocating memory fails */

enum { OUT_OF_DEVICE_MEMORY = -2, DEVICE_LOST = -4 };

typedef void (*function)(void);
static int (*submit)(void *, uint32_t, const void *, void *);
static int (*allocate)(void *, const void *, const void *, void *);

static int failing_submit(void *queue, uint32_t n, const void *submits, void *fence) {
    return lost ? DEVICE_LOST : submit(queue, n, submits, fence);
}

static int failing_allocate(void *device, const void *info, const void *allocator, void *memory) {
    return full ? OUT_OF_DEVICE_MEMORY : allocate(device, info, allocator, memory);
}

function vkGetInstanceProcAddr(void *instance, const char *name) {
    static function (*real)(void *, const char *);
    if (!real) {
        real = (function (*)(void *, const char *))dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr");
    }
    function found = real(instance, name);
    if (found && !strcmp(name, "vkQueueSubmit")) {
        submit = (int (*)(void *, uint32_t, const void *, void *))found;
        return (function)failing_submit;
    }
    if (found && !strcmp(name, "vkAllocateMemory")) {
        allocate = (int (*)(void *, const void *, const void *, void *))found;
        return (function)failing_allocate;
    }
    return found;
}
