/* Preloaded into a process, it stops or shifts the process's wall clock. CHAOS_CLOCK names a file of two numbers of
 * nanoseconds: the time at which the clock stands (0: it runs), and otherwise an offset. Monotonic clocks are unchanged.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *settings;

__attribute__((constructor)) static void open_settings(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *settings, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) settings = map;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int code = (int)syscall(SYS_clock_gettime, id, now);
    if (code == 0 && settings && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t fixed = settings[0];
        int64_t ns = fixed ? fixed : now->tv_sec * INT64_C(1000000000) + now->tv_nsec + settings[1];
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    int code = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return code;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
