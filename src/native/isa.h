// Whether this processor runs what was compiled for an instruction set of x86: one condition for
// the choice at run time (api.cpp) and for a build for this machine alone (CMakeLists.txt).
#pragma once
#define LINRNN_RUNS_avx512                                                       \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&  \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#define LINRNN_RUNS_avx2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
