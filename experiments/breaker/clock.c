/* Loaded before all else, it lets the wall clock of a process stand, or sets it: BREAKER_CLOCK names a file of two
 * numbers of nanoseconds, the time at which the clock stands (0: it goes) and what is added to it else. Clocks that
 * tell durations go on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *said;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BREAKER_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *said, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) said = map;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int code = (int)syscall(SYS_clock_gettime, which, now);
    if (code == 0 && said && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t stands = said[0], ns = stands ? stands : now->tv_sec * INT64_C(1000000000) + now->tv_nsec + said[1];
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int code = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return code;
}

time_t time(time_t *there) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (there) *there = now.tv_sec;
    return now.tv_sec;
}
