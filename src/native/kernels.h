// Every kernel: its source is kernels/<name>.cpp, its C function linrnn_<name>. Each takes one flat
// record of 64-bit fields that starts with its own size, so that a library and a package of
// different versions notice.
#pragma once

#define LINRNN_KERNELS(X) X(causal_conv) X(gated_scan) X(log_scan) X(mamba_step) X(scan) X(selective_scan)
