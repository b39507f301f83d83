// Every kernel: its source is kernels/<name>.cpp, its C function linrnn_<name>. Each takes one flat
// record of 64-bit fields that starts with its own size, so that a library and a package of
// different versions notice.
#pragma once
#include "block_carry_args.h"
#include "block_scan_args.h"
#include "cauchy_args.h"
#include "causal_conv_args.h"
#include "dense_steps_args.h"
#include "dplr_powers_args.h"
#include "exceedance_args.h"
#include "gated_norm_args.h"
#include "gated_scan_args.h"
#include "log_decays_args.h"
#include "low_rank_keys_args.h"
#include "machine_args.h"
#include "memory_scan_args.h"
#include "quantized_args.h"
#include "recorded_step_args.h"
#include "round_args.h"
#include "scale_heads_args.h"
#include "scan_args.h"
#include "selective_scan_args.h"
#include "skip_args.h"
#include "token_mix_args.h"
#include "traces_args.h"
#include "update_args.h"
#include "vandermonde_args.h"
#include "weight_gradient_args.h"
#include "wkv_args.h"

#define LINRNN_KERNELS(X)                                                                 \
    X(block_carry) X(block_scan) X(cauchy) X(causal_conv) X(conv_update) X(delta_update)  \
    X(dense_steps) X(dplr_powers) X(exceedance) X(gated_norm) X(gated_scan) X(log_decays) \
    X(log_scan) X(low_rank_keys) X(machine) X(memory_scan) X(outer_update) X(quantized)   \
    X(recorded_step) X(round) X(scale_heads) X(scan) X(selective_scan)                    \
    X(selective_update) X(skip) X(token_mix) X(traces) X(vandermonde) X(weight_gradient) \
    X(wkv)

// The fields of the records that Python fills in by name.
#define LINRNN_RECORDS(X)                          \
    X(block_carry, LINRNN_BLOCK_CARRY_FIELDS)      \
    X(block_scan, LINRNN_BLOCK_SCAN_FIELDS)        \
    X(cauchy, LINRNN_CAUCHY_FIELDS)                \
    X(causal_conv, LINRNN_CAUSAL_CONV_FIELDS)      \
    X(conv_update, LINRNN_CONV_UPDATE_FIELDS)      \
    X(delta_update, LINRNN_DELTA_UPDATE_FIELDS)    \
    X(dense_steps, LINRNN_DENSE_STEPS_FIELDS)      \
    X(dplr_powers, LINRNN_DPLR_POWERS_FIELDS)      \
    X(exceedance, LINRNN_EXCEEDANCE_FIELDS)        \
    X(gated_norm, LINRNN_GATED_NORM_FIELDS)        \
    X(gated_scan, LINRNN_GATED_SCAN_FIELDS)        \
    X(log_decays, LINRNN_LOG_DECAYS_FIELDS)        \
    X(log_scan, LINRNN_SCAN_FIELDS)                \
    X(low_rank_keys, LINRNN_LOW_RANK_KEYS_FIELDS)  \
    X(machine, LINRNN_MACHINE_FIELDS)              \
    X(memory_scan, LINRNN_MEMORY_SCAN_FIELDS)      \
    X(outer_update, LINRNN_OUTER_UPDATE_FIELDS)    \
    X(quantized, LINRNN_QUANTIZED_FIELDS)          \
    X(recorded_step, LINRNN_RECORDED_STEP_FIELDS)  \
    X(round, LINRNN_ROUND_FIELDS)                  \
    X(scale_heads, LINRNN_SCALE_HEADS_FIELDS)      \
    X(scan, LINRNN_SCAN_FIELDS)                    \
    X(selective_scan, LINRNN_SELECTIVE_SCAN_FIELDS) \
    X(selective_update, LINRNN_SELECTIVE_UPDATE_FIELDS) \
    X(skip, LINRNN_SKIP_FIELDS)                    \
    X(token_mix, LINRNN_TOKEN_MIX_FIELDS)          \
    X(traces, LINRNN_TRACES_FIELDS)                \
    X(vandermonde, LINRNN_VANDERMONDE_FIELDS)       \
    X(weight_gradient, LINRNN_WEIGHT_GRADIENT_FIELDS) \
    X(wkv, LINRNN_WKV_FIELDS)
