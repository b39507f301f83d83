// The functions of libgomp that GCC's OpenMP code calls, over std::thread, for ThreadSanitizer.
//
// libgomp itself is not built with it, so the sanitizer would not see that a team begins after what
// came before and that a barrier is one: every parallel loop would be reported, and suppressing
// those reports would hide the real ones. Here it sees each start, end and barrier. The interface is
// documented in "The libgomp ABI" of the GCC manual. A region may hold one shared loop, as all of
// ours do; loops hand out their parts without ordering the threads, as libgomp's do.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Team {
    int members;
    std::atomic<long> parts{0};
    std::mutex mutex;
    std::condition_variable all_here;
    int arrived = 0, round = 0;

    void barrier() {
        std::unique_lock<std::mutex> lock(mutex);
        int mine = round;
        if (++arrived == members) {
            arrived = 0, ++round;
            all_here.notify_all();
        } else {
            all_here.wait(lock, [&] { return round != mine; });
        }
    }
};

struct Loop {
    long start, end, by;
};

std::mutex critical;
thread_local Team* team = nullptr;
thread_local int number = 0;
thread_local Loop loop;

void work(Team* of, int k, void (*body)(void*), void* data) {
    team = of, number = k;
    body(data);
    team = nullptr, number = 0;
}

}  // namespace

extern "C" {

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
    Team shared;
    shared.members = threads ? int(threads) : 4;
    std::vector<std::thread> others;
    for (int k = 1; k < shared.members; ++k) others.emplace_back(work, &shared, k, body, data);
    work(&shared, 0, body, data);
    for (auto& other : others) other.join();
}

bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) {
    long at = loop.start + team->parts.fetch_add(1, std::memory_order_relaxed) * loop.by;
    if (at >= loop.end) return false;
    *first = at;
    *last = at + loop.by < loop.end ? at + loop.by : loop.end;
    return true;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long by, long chunk, long* first,
                                          long* last) {
    if (by != 1 || !team || team->round) {
        std::fprintf(stderr, "gomp.cpp: a loop of a kind it does not know\n");
        std::abort();
    }
    loop = {start, end, chunk};
    return GOMP_loop_nonmonotonic_dynamic_next(first, last);
}

void GOMP_loop_end() { team->barrier(); }
void GOMP_loop_end_nowait() {}
void GOMP_barrier() { team->barrier(); }
void GOMP_critical_start() { critical.lock(); }
void GOMP_critical_end() { critical.unlock(); }

int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return team ? team->members : 1; }
}
