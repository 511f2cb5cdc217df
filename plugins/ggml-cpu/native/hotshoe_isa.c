/* Which instruction sets this CPU has: asked once, at the first call. */
#include "isa.h"

#include "hotshoe_kernels.h"

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)
#include <stdatomic.h>
#endif

#if defined(HOTSHOE_X86)

#include <cpuid.h>

static int ask_cpu(void) {
    __builtin_cpu_init();
    int sets = 0;
    /* Every CPU with AVX2 has F16C, and not every compiler knows "f16c" here. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        sets |= CPU_AVX2;
    }
    if (sets && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        sets |= CPU_AVX512;
        sets |= __builtin_cpu_supports("avx512bf16") ? CPU_AVX512_BF16 : 0;
        sets |= __builtin_cpu_supports("avx512vnni") ? CPU_AVX512_VNNI : 0;
    }
    /* Not every compiler that has AVX-VNNI's instructions knows "avxvnni" here. */
    unsigned a, b, c, d;
    if (sets && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1) {
        sets |= CPU_AVX_VNNI;
    }
    return sets;
}

#elif defined(HOTSHOE_ARM)

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__APPLE__)
static int has_feature(const char * name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, 0, 0) == 0 && value;
}
#endif

static int ask_cpu(void) {
    int dotprod = 0, i8mm = 0;
#if defined(__linux__)
    dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#elif defined(__APPLE__)
    dotprod = has_feature("hw.optional.arm.FEAT_DotProd");
    i8mm = has_feature("hw.optional.arm.FEAT_I8MM");
#endif
    return (dotprod ? CPU_DOTPROD : 0) | (i8mm ? CPU_I8MM : 0);
}

#endif

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)

int hotshoe_cpu(void) {
    static _Atomic int known = -1;
    int sets = atomic_load_explicit(&known, memory_order_relaxed);
    if (sets < 0) { /* several threads may come here: all store the same value */
        sets = ask_cpu();
        atomic_store_explicit(&known, sets, memory_order_relaxed);
    }
    return sets;
}

#else

int hotshoe_cpu(void) { return 0; }

#endif

const char * hotshoe_kernels_isa(void) {
    const int sets = hotshoe_cpu();
    return sets & CPU_AVX512 ? "avx512" : sets & CPU_AVX2 ? "avx2" : "generic";
}
