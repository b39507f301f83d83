// Calls every kernel through the C interface, on random shapes that are the same in every run, and
// compares with plain loops. It is what sanitizers watch: `make sanitize`.
//
//   kernels_driver [rounds]   checks; exit code 1 where a number is wrong
//   kernels_driver overrun    reads beyond an array, so that a sanitizer must complain
//   kernels_driver race       lets two threads write one array, so that a sanitizer must complain
#include <thread>

#include "blocks.h"
#include "cells.h"
#include "dense_steps.h"
#include "learning.h"
#include "memories.h"
#include "mixes.h"
#include "modes.h"
#include "quantized.h"
#include "recorded.h"
#include "systems.h"
#include "updates.h"
#include "wkv.h"

extern "C" const char* linrnn_isa();

namespace {

template <class P, class... Rest>
void one(Random& random, bool large, Rest... rest) {
    P problem(random, rest..., large);
    check(problem, random);
}

int checks(i64 rounds) {
    for (i64 round = 0; round < rounds; ++round) {
        Random random{std::uint64_t(round)};
        const bool large = round % 8 == 7;
        try {
            one<Scan>(random, large, false);
            one<Scan>(random, large, true);
            one<Blocks>(random, large);
            one<Gated>(random, large);
            one<GatedMean>(random, large);
            one<DenseCell>(random, large);
            one<PairsCell>(random, large);
            one<DenseGates>(random, large);
            one<WeightedMeans>(random, large);
            one<Conv>(random, large);
            one<Selective>(random, large);
            one<Memories>(random, large, false);
            one<Memories>(random, large, true);
            one<RecordedProgram>(random, large);
            one<FewBits>(random, large);
            one<Fractions>(random, large);
            one<SumsOfPowers>(random, large);
            one<LowRankPowers>(random, large);
            one<Carried>(random, large);
            one<Owed>(random, large);
            one<Counted>(random, large);
            one<ConvStep>(random, large);
            one<SelectiveStep>(random, large);
            one<OuterStep>(random, large);
            one<DeltaStep>(random, large);
            one<GatedNorms>(random, large);
            one<Mixes>(random, large);
            one<LowRankKeys>(random, large);
            one<LogDecays>(random, large);
            one<LogSigmoids>(random, large);
            one<Skips>(random, large);
            one<ScaledHeads>(random, large);
            one<WeightGradients>(random, large);
            one<Rounded>(random, large);
        } catch (const Failure& failure) {
            std::fprintf(stderr, "round %lld: %s\n", static_cast<long long>(round), failure.what.c_str());
            return 1;
        }
    }
    std::printf("%lld rounds of every kernel agree with their loops (%s)\n",
                static_cast<long long>(rounds), linrnn_isa());
    return 0;
}

// A scan whose record says more channels, or that runs twice at once.
int planted(bool overrun) {
    const i64 channels = 37, time = 50;
    Random random(0);
    Memory a(linrnn::F32, random.numbers(time * channels)), b(linrnn::F32, random.numbers(time * channels));
    Memory h(linrnn::F32, time * channels), final(linrnn::F32, channels);
    linrnn::ScanArgs args{};
    args.size = sizeof args, args.threads = 1, args.seqs = 1, args.time = time;
    args.channels = channels + overrun;
    args.a = {a.address(), 0, channels}, args.b = {b.address(), 0, channels};
    args.h = {h.address(), 0, channels}, args.final = final.address();
    auto scan = [&args] { linrnn_scan(&args); };
    std::thread other(scan);
    if (overrun) other.join();
    scan();
    if (!overrun) other.join();
    std::printf("nothing was noticed\n");
    return 0;
}

}  // namespace

int main(int count, char** words) {
    const std::string word = count > 1 ? words[1] : "64";
    if (word == "overrun" || word == "race") return planted(word == "overrun");
    return checks(std::atoll(word.c_str()));
}
