/*
 * The core of a wide-area network on one machine. It forwards packets between network namespaces, without netem.
 *
 *   wan-hub serve SOCKET SEED      runs until it is killed
 *   wan-hub SOCKET COMMAND...      says COMMAND to that hub, and prints its answer
 *
 * Each host has a TUN device and one link to the core. On its way a packet passes the sender's link out, and the
 * receiver's link in. A link has a one-way delay, a probability of loss, a rate, and may be down, in both directions.
 *
 *   add NAMESPACE ADDRESS          makes tun0 there, for packets to ADDRESS
 *   set NAMESPACE KEY=VALUE...     delay=MILLISECONDS, loss=PERCENT, rate=BITS_PER_SECOND (0: no limit), up=yes|no
 *   remove NAMESPACE
 *   stat                           prints a line for each host
 *
 * Packets count as they come to a link. Chance makes them lost. A full queue or a cut link drops them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  HOSTS_MAX = 64,
  WORDS_MAX = 8,
  LINE_MAX_BYTES = 512,
  ANSWER_MAX_BYTES = 65536,
  PACKET_MAX = 65536,
  FLYING_MAX = 1 << 17
};
enum { READS_PER_TURN = 64 };
#define NS_PER_S 1000000000ull
#define QUEUE_NS (NS_PER_S / 4) /* of packets that wait for a link: more are dropped */
#define LEAST_QUEUE_BYTES 262144u

struct way { /* one direction of a link */
  uint64_t packets, bytes, lost, dropped, free_ns;
  uint64_t chance; /* of its own: the draws for its packets do not depend on other links */
};

struct host {
  char name[64];
  int tun; /* -1: no host */
  uint32_t address;
  uint64_t delay_ns, rate;
  double loss; /* 0 to 1 */
  bool is_up;
  unsigned life; /* of the place in `hosts`: packets for a removed host are not its successor's */
  struct way out, in;
};

struct packet {
  uint64_t due_ns, number;
  unsigned to, life;
  bool has_crossed; /* the receiver's link is behind it */
  size_t len;
  unsigned char bytes[];
};

static struct host hosts[HOSTS_MAX];
static struct packet *flying[FLYING_MAX]; /* a heap: the earliest first */
static size_t n_flying;
static uint64_t next_number, seed;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* splitmix64: the same seed makes the same losses. */
static bool happens(uint64_t *chance, double probability) {
  if (probability <= 0) return false;
  uint64_t x = *chance += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0 < probability;
}

static bool is_earlier(const struct packet *a, const struct packet *b) {
  return a->due_ns < b->due_ns || (a->due_ns == b->due_ns && a->number < b->number);
}

static void put(struct packet *packet) {
  size_t at = n_flying++;
  packet->number = next_number++;
  for (; at > 0 && is_earlier(packet, flying[(at - 1) / 2]); at = (at - 1) / 2) flying[at] = flying[(at - 1) / 2];
  flying[at] = packet;
}

static struct packet *take_first(void) {
  struct packet *const first = flying[0], *const last = flying[--n_flying];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < n_flying; at = child) {
    if (child + 1 < n_flying && is_earlier(flying[child + 1], flying[child])) child++;
    if (!is_earlier(flying[child], last)) break;
    flying[at] = flying[child];
  }
  flying[at] = last;
  return first;
}

/* The packet passes one direction of a link. False: it is lost there. Else it leaves it at *due_ns. */
static bool pass(const struct host *host, struct way *way, size_t len, uint64_t *due_ns) {
  way->packets++;
  way->bytes += len;
  if (!host->is_up) {
    way->dropped++;
    return false;
  }
  if (happens(&way->chance, host->loss)) {
    way->lost++;
    return false;
  }
  if (host->rate > 0) {
    const uint64_t begins = way->free_ns > *due_ns ? way->free_ns : *due_ns;
    const uint64_t least_ns = 8ull * LEAST_QUEUE_BYTES * NS_PER_S / host->rate;
    if (begins - *due_ns > (least_ns > QUEUE_NS ? least_ns : QUEUE_NS)) {
      way->dropped++;
      return false;
    }
    *due_ns = way->free_ns = begins + 8 * len * NS_PER_S / host->rate;
  }
  *due_ns += host->delay_ns;
  return true;
}

static struct host *host_at(uint32_t address) {
  for (struct host *host = hosts; host < hosts + HOSTS_MAX; host++)
    if (host->tun >= 0 && host->address == address) return host;
  return NULL;
}

/* One packet of a host. False: there is none. */
static bool receive(struct host *from) {
  static unsigned char bytes[PACKET_MAX];
  const ssize_t len = read(from->tun, bytes, sizeof bytes);
  if (len < 0) return false;
  uint32_t address;
  if (len < 20 || bytes[0] >> 4 != 4) return true; /* IPv6 looks for neighbours all the time */
  memcpy(&address, bytes + 16, sizeof address);
  uint64_t due_ns = now();
  struct host *const to = host_at(address);
  if (!pass(from, &from->out, (size_t)len, &due_ns) || !to) return true;
  struct packet *const packet = n_flying < FLYING_MAX ? malloc(sizeof *packet + (size_t)len) : NULL;
  if (!packet) {
    from->out.dropped++;
    return true;
  }
  *packet = (struct packet){.due_ns = due_ns, .to = (unsigned)(to - hosts), .life = to->life, .len = (size_t)len};
  memcpy(packet->bytes, bytes, (size_t)len);
  put(packet);
  return true;
}

/* The first packet in flight is at the receiver's link, or at its end. */
static void go_on(struct packet *packet) {
  struct host *const to = &hosts[packet->to];
  if (to->tun < 0 || to->life != packet->life) {
    free(packet);
  } else if (!packet->has_crossed && pass(to, &to->in, packet->len, &packet->due_ns)) {
    packet->has_crossed = true;
    put(packet);
  } else {
    if (packet->has_crossed && write(to->tun, packet->bytes, packet->len) < 0) to->in.dropped++;
    free(packet);
  }
}

static struct host *host_named(const char *name) {
  for (struct host *host = hosts; host < hosts + HOSTS_MAX; host++)
    if (host->tun >= 0 && strcmp(host->name, name) == 0) return host;
  return NULL;
}

/* A TUN device in another namespace; -1 and errno. This process comes back to its own. */
static int open_tun(const char *namespace) {
  char path[128];
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  snprintf(path, sizeof path, "/run/netns/%.64s", namespace);
  strcpy(request.ifr_name, "tun0");
  const int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), other = open(path, O_RDONLY | O_CLOEXEC);
  int tun = -1;
  if (own >= 0 && other >= 0 && setns(other, CLONE_NEWNET) == 0) {
    tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tun >= 0 && ioctl(tun, TUNSETIFF, &request) != 0) {
      close(tun);
      tun = -1;
    }
    const int why = errno;
    if (setns(own, CLONE_NEWNET) != 0) abort();
    errno = why;
  }
  const int why = errno;
  if (own >= 0) close(own);
  if (other >= 0) close(other);
  errno = why;
  return tun;
}

/* Commands write their answer; one that begins with "error: " makes the client fail. */

static void add(const char *name, const char *address, char *answer) {
  struct host *host = hosts;
  struct in_addr parsed;
  while (host < hosts + HOSTS_MAX && host->tun >= 0) host++;
  if (host == hosts + HOSTS_MAX || host_named(name) || strlen(name) >= sizeof host->name) {
    sprintf(answer, "error: %.64s: there is a host of that name, or there are %d hosts\n", name, HOSTS_MAX);
  } else if (inet_pton(AF_INET, address, &parsed) != 1 || host_at(parsed.s_addr)) {
    sprintf(answer, "error: '%.64s' is no IPv4 address that is free\n", address);
  } else {
    const unsigned life = host->life + 1;
    *host = (struct host){.tun = open_tun(name), .address = parsed.s_addr, .is_up = true, .life = life};
    strcpy(host->name, name);
    host->out.chance = seed + 2 * (uint64_t)(host - hosts) * 0x2545f4914f6cdd1dull;
    host->in.chance = host->out.chance + 0x2545f4914f6cdd1dull;
    if (host->tun < 0) sprintf(answer, "error: no tun0 in namespace %.64s: %s\n", name, strerror(errno));
  }
}

static bool set(struct host *host, const char *word) {
  double number;
  char end;
  if (strcmp(word, "up=yes") == 0 || strcmp(word, "up=no") == 0) {
    host->is_up = word[3] == 'y';
    return true;
  }
  const char *const value = strchr(word, '=');
  if (!value || sscanf(value + 1, "%lf%c", &number, &end) != 1 || !(number >= 0 && number < 1e15)) return false;
  if (strncmp(word, "delay=", 6) == 0)
    host->delay_ns = (uint64_t)(number * 1e6);
  else if (strncmp(word, "loss=", 5) == 0 && number <= 100)
    host->loss = number / 100;
  else if (strncmp(word, "rate=", 5) == 0) {
    host->rate = (uint64_t)number;
    host->out.free_ns = host->in.free_ns = 0; /* Later packets overtake those that wait at the old rate. */
  } else
    return false;
  return true;
}

static void tell(char *answer, const char *name, const struct way *way) {
  sprintf(answer + strlen(answer), " %s packets %llu bytes %llu lost %llu dropped %llu", name,
          (unsigned long long)way->packets, (unsigned long long)way->bytes, (unsigned long long)way->lost,
          (unsigned long long)way->dropped);
}

static void stat_all(char *answer) {
  for (const struct host *host = hosts; host < hosts + HOSTS_MAX; host++) {
    if (host->tun < 0) continue;
    sprintf(answer + strlen(answer), "%.63s", host->name);
    tell(answer, "out", &host->out);
    tell(answer, "in", &host->in);
    strcat(answer, "\n");
  }
}

static void execute(char *line, char *answer) {
  char *words[WORDS_MAX] = {NULL}, *rest = line;
  unsigned n = 0;
  answer[0] = '\0';
  while (n < WORDS_MAX && (words[n] = strtok_r(rest, " \n", &rest))) n++;
  struct host *const host = n > 1 ? host_named(words[1]) : NULL;
  if (n == 3 && strcmp(words[0], "add") == 0) {
    add(words[1], words[2], answer);
  } else if (n == 1 && strcmp(words[0], "stat") == 0) {
    stat_all(answer);
  } else if (host && n == 2 && strcmp(words[0], "remove") == 0) {
    close(host->tun);
    host->tun = -1;
  } else if (host && n > 2 && strcmp(words[0], "set") == 0) {
    for (unsigned i = 2; i < n && !answer[0]; i++)
      if (!set(host, words[i]))
        sprintf(answer, "error: '%.64s': must be delay=MS, loss=0..100, rate=BITS_PER_SECOND, up=yes or up=no\n",
                words[i]);
  } else {
    sprintf(
        answer,
        "error: must be add NAMESPACE ADDRESS, set NAMESPACE KEY=VALUE..., remove NAMESPACE (of a host), or stat\n");
  }
}

static void serve_client(int listener) {
  static char answer[ANSWER_MAX_BYTES];
  char line[LINE_MAX_BYTES];
  const int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (client < 0) return;
  const ssize_t len = read(client, line, sizeof line - 1); /* a command is one write */
  if (len > 0) {
    line[len] = '\0';
    execute(line, answer);
    if (write(client, answer, strlen(answer)) < 0) perror("wan-hub: answer");
  }
  close(client);
}

static int wait_ms(void) {
  if (n_flying == 0) return 1000;
  const uint64_t now_ns = now();
  return flying[0]->due_ns <= now_ns ? 0 : (int)((flying[0]->due_ns - now_ns + 999999) / 1000000);
}

static void turn(int listener) {
  struct pollfd polls[HOSTS_MAX + 1];
  for (unsigned i = 0; i < HOSTS_MAX; i++) polls[i] = (struct pollfd){.fd = hosts[i].tun, .events = POLLIN};
  polls[HOSTS_MAX] = (struct pollfd){.fd = listener, .events = POLLIN};
  if (poll(polls, HOSTS_MAX + 1, wait_ms()) < 0) return;
  for (unsigned i = 0; i < HOSTS_MAX; i++)
    for (unsigned n = 0; polls[i].revents && n < READS_PER_TURN && receive(&hosts[i]);) n++;
  while (n_flying > 0 && flying[0]->due_ns <= now()) go_on(take_first());
  if (polls[HOSTS_MAX].revents) serve_client(listener);
}

static int open_socket(const char *path, bool listens) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
  strcpy(address.sun_path, path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (listens ? bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0
              : connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
    return fd;
  close(fd);
  return -1;
}

static int serve(const char *path, const char *given_seed) {
  const int listener = open_socket(path, true);
  if (listener < 0) return fprintf(stderr, "wan-hub: %s: %s\n", path, strerror(errno)), 1;
  seed = strtoull(given_seed, NULL, 10);
  for (unsigned i = 0; i < HOSTS_MAX; i++) hosts[i].tun = -1;
  signal(SIGPIPE, SIG_IGN);
  for (;;) turn(listener);
}

static int ask(const char *path, char **words) {
  char line[LINE_MAX_BYTES] = "";
  static char answer[ANSWER_MAX_BYTES + 1];
  size_t used = 0, got = 0;
  for (; *words && used < sizeof line; words++)
    used += (size_t)snprintf(line + used, sizeof line - used, "%s ", *words);
  if (used >= sizeof line) return fprintf(stderr, "wan-hub: the command is too long\n"), 2;
  const int hub = open_socket(path, false);
  if (hub < 0 || write(hub, line, used) < 0) return fprintf(stderr, "wan-hub: %s: %s\n", path, strerror(errno)), 1;
  for (ssize_t len; (len = read(hub, answer + got, ANSWER_MAX_BYTES - got)) > 0;) got += (size_t)len;
  close(hub);
  const bool failed = strncmp(answer, "error: ", 7) == 0;
  fprintf(failed ? stderr : stdout, "%s%s", failed ? "wan-hub: " : "", answer + (failed ? 7 : 0));
  return failed;
}

int main(int argc, char **argv) {
  if (argc == 4 && strcmp(argv[1], "serve") == 0) return serve(argv[2], argv[3]);
  if (argc >= 3) return ask(argv[1], argv + 2);
  fprintf(stderr, "usage: wan-hub serve SOCKET SEED, or wan-hub SOCKET COMMAND...\n");
  return 2;
}
