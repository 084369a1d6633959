/* A wall clock that can be set: loaded before a server's own libraries, it adds an offset in microseconds that is
 * read anew from a mapped file each time. What tells the time of day and what waits for one is touched; the monotonic clock is
 * not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LOCKKEEPER_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset = page;
}

/* By system call: asking the C library for its own function here would allocate, and some allocators ask the time. */
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (failed || !offset || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    long long nanos = at->tv_nsec + (*offset % 1000000) * 1000;
    at->tv_sec += *offset / 1000000 + (nanos < 0 ? -1 : nanos / 1000000000);
    at->tv_nsec = nanos < 0 ? nanos + 1000000000 : nanos % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Whoever waits until a time of day means ours. The kernel knows another, so it is told for how long instead. A small number is
 * no time of day: it counts from when the machine was started, by the clock that is not touched. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec now, at = *until;
    if (until->tv_sec > 1000000000) {
        clock_gettime(CLOCK_REALTIME, &now);
        long long nanos = (until->tv_sec - now.tv_sec) * 1000000000LL + until->tv_nsec - now.tv_nsec;
        clock_gettime(CLOCK_MONOTONIC, &at);
        nanos = (nanos < 0 ? 0 : nanos) + at.tv_nsec;
        at.tv_sec += nanos / 1000000000;
        at.tv_nsec = nanos % 1000000000;
    }
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &at);
}
