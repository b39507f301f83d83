// Every kernel: its source is kernels/<name>.cpp, its C function linrnn_<name>. Each takes one flat
// record of 64-bit fields that starts with its own size, so that a library and a package of
// different versions notice.
#pragma once

#define LINRNN_KERNELS(X)                                                                 \
    X(causal_conv) X(channel_mix_step) X(gated_scan) X(linear_step) X(log_scan)           \
    X(mamba_step) X(norm_step) X(scan) X(selective_scan) X(step_program) X(time_mix_step)
