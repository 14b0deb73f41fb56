/* Preloaded into a Python process: counts the calls on files below one folder, and lets one of them fail.
 *
 * cc -shared -fPIC -O1 -o faults.so faults.c -ldl; LD_PRELOAD=./faults.so python ...
 * A process calls fault_arm(folder, mode, number): call `number` (1 is the first) fails as `mode` says. With mode 0 none
 * does, and fault_calls(mode) is how many calls the mode would have counted. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum mode { COUNT, FULL, BROKEN, SHORT, READ_ONLY, INTERRUPTED, KILL, TORN };
enum call { OPEN_READ = 1, OPEN_WRITE = 2, READ = 4, WRITE = 8, SYNC = 16, NAME = 32, LIST = 64 };

/* which calls a mode can fail, with which error, and whether every later call fails too */
static const struct { int calls, error, lasting; } MODES[] = {
    [COUNT] = {0, 0, 0},
    [FULL] = {OPEN_WRITE | WRITE | SYNC | NAME, ENOSPC, 1},
    [BROKEN] = {OPEN_READ | OPEN_WRITE | READ | WRITE | SYNC | NAME | LIST, EIO, 0},
    [SHORT] = {READ | WRITE, 0, 0},
    [READ_ONLY] = {OPEN_WRITE | NAME, EROFS, 1},
    [INTERRUPTED] = {OPEN_READ | OPEN_WRITE | READ | WRITE | SYNC, EINTR, 0},
    [KILL] = {OPEN_WRITE | WRITE | SYNC | NAME, 0, 0},
    [TORN] = {WRITE, 0, 0}, /* half of it is written, then a kill */
};

static char folder[PATH_MAX];
static enum mode armed = COUNT;
static long number = 0, counted[TORN + 1];
static char tracked[1 << 16]; /* by file descriptor: whether it is of a file below the folder */

void fault_arm(const char *path, int mode, long at) {
    snprintf(folder, sizeof folder, "%s", path);
    armed = mode;
    number = at;
    memset(counted, 0, sizeof counted);
}
long fault_calls(int mode) { return counted[mode]; }

static int below(int dir, const char *path) {
    if (folder[0] == 0 || path == NULL) return 0;
    if (path[0] != '/') return dir >= 0 && dir < (int)sizeof tracked && tracked[dir];
    return strncmp(path, folder, strlen(folder)) == 0;
}
static int is_tracked(int fd) { return fd >= 0 && fd < (int)sizeof tracked && tracked[fd]; }

/* count one call; 1 if it is to fail, with errno set */
static int fails(enum call call) {
    for (int mode = FULL; mode <= TORN; mode++) counted[mode] += (MODES[mode].calls & call) != 0;
    if (!(MODES[armed].calls & call) || counted[armed] < number) return 0;
    if (counted[armed] > number && !MODES[armed].lasting) return 0;
    if (armed == KILL) raise(SIGKILL);
    errno = MODES[armed].error;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int opened(int fd, int is_below) {
    if (fd >= 0 && fd < (int)sizeof tracked) tracked[fd] = (char)is_below;
    return fd;
}
#define OPENS(name, dir, ...)                                                                                        \
    REAL(name);                                                                                                      \
    mode_t permissions = 0;                                                                                          \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list arguments;                                                                                           \
        va_start(arguments, flags);                                                                                  \
        permissions = va_arg(arguments, mode_t);                                                                     \
        va_end(arguments);                                                                                           \
    }                                                                                                                \
    int is_below = below(dir, path);                                                                                 \
    if (is_below && fails((flags & (O_WRONLY | O_RDWR | O_CREAT)) ? OPEN_WRITE : OPEN_READ)) return -1;              \
    return opened(real(__VA_ARGS__, permissions), is_below)

int open(const char *path, int flags, ...) { OPENS(open, -1, path, flags); }
int open64(const char *path, int flags, ...) { OPENS(open64, -1, path, flags); }
int openat(int dir, const char *path, int flags, ...) { OPENS(openat, dir, dir, path, flags); }
int openat64(int dir, const char *path, int flags, ...) { OPENS(openat64, dir, dir, path, flags); }

int close(int fd) {
    REAL(close);
    opened(fd, 0);
    return real(fd);
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (is_tracked(fd) && fails(WRITE)) {
        if (armed != SHORT && armed != TORN) return -1;
        size = (size + 1) / 2;
    }
    ssize_t written = real(fd, data, size);
    if (armed == TORN && is_tracked(fd) && counted[TORN] == number) raise(SIGKILL);
    return written;
}
ssize_t read(int fd, void *data, size_t size) {
    REAL(read);
    if (is_tracked(fd) && fails(READ)) {
        if (armed != SHORT) return -1;
        size = (size + 1) / 2;
    }
    return real(fd, data, size);
}
int fsync(int fd) {
    REAL(fsync);
    return is_tracked(fd) && fails(SYNC) ? -1 : real(fd);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    return below(-1, to) && fails(NAME) ? -1 : real(from, to);
}
int mkdir(const char *path, mode_t permissions) {
    REAL(mkdir);
    return below(-1, path) && fails(NAME) ? -1 : real(path, permissions);
}
int unlink(const char *path) {
    REAL(unlink);
    return below(-1, path) && fails(NAME) ? -1 : real(path);
}
int unlinkat(int dir, const char *path, int flags) {
    REAL(unlinkat);
    return below(dir, path) && fails(NAME) ? -1 : real(dir, path, flags);
}
int rmdir(const char *path) {
    REAL(rmdir);
    return below(-1, path) && fails(NAME) ? -1 : real(path);
}
DIR *opendir(const char *path) {
    REAL(opendir);
    return below(-1, path) && fails(LIST) ? NULL : real(path);
}
