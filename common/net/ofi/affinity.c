#include "common/net/ofi/affinity.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps between two devices below one bridge are fewer than that. */
enum { AT_HOST_BRIDGE = 100, ON_NODE = 200, ELSEWHERE = 300 };

static void forget(struct ofi_place *place) {
  *place = (struct ofi_place){.node = -1};
}

/* One line of a file, without its end; false: there is none. */
static bool read_line(const char *path, char *line, size_t size) {
  FILE *const file = fopen(path, "re");
  const bool has_line = file && fgets(line, (int)size, file);
  if (file) fclose(file);
  if (has_line) line[strcspn(line, "\n")] = '\0';
  return has_line;
}

static bool is_pci_address(const char *word, size_t n) {
  char copy[20];
  unsigned domain, bus, device, function;
  int end = 0;
  if (n >= sizeof copy) return false;
  memcpy(copy, word, n);
  copy[n] = '\0';
  return sscanf(copy, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &end) == 4 && (size_t)end == n;
}

/* The end of the last PCI device in a path of /sys/devices; NULL: there is none. */
static char *last_pci_end(char *path, const char **name_p) {
  char *end = NULL;
  for (char *part = path; *part;) {
    const size_t n = strcspn(part, "/");
    if (is_pci_address(part, n)) {
      *name_p = part;
      end = part + n;
    }
    part += n + strspn(part + n, "/");
  }
  return end;
}

/* The PCI device that `link`, a path in /sys, leads to or through. */
static bool place_of_link(const char *root, const char *link, struct ofi_place *place_p) {
  static const char devices[] = "/sys/devices/";
  char path[PATH_MAX], real[PATH_MAX], line[16];
  const char *name = NULL;
  forget(place_p);
  if (snprintf(path, sizeof path, "%s/sys/%s", root, link) >= (int)sizeof path || !realpath(path, real)) return false;
  char *const at = strstr(real, devices), *const from = at ? at + sizeof devices - 1 : NULL;
  char *const end = from ? last_pci_end(from, &name) : NULL;
  if (!end) return false;
  *end = '\0';
  snprintf(place_p->path, sizeof place_p->path, "%s", from);
  snprintf(place_p->pci, sizeof place_p->pci, "%s", name);
  if (snprintf(path, sizeof path, "%s/numa_node", real) < (int)sizeof path && read_line(path, line, sizeof line))
    place_p->node = atoi(line);
  return true;
}

void zps_ofi_place_of_pci(const char *root, const char *address, struct ofi_place *place_p) {
  unsigned domain, bus, device, function;
  char link[64];
  forget(place_p);
  if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return;
  snprintf(link, sizeof link, "bus/pci/devices/%04x:%02x:%02x.%x", domain, bus, device, function);
  if (!place_of_link(root, link, place_p))
    snprintf(place_p->pci, sizeof place_p->pci, "%04x:%02x:%02x.%x", domain & 0xffffff, bus & 0xff, device & 0xff,
             function & 0xf);
}

static bool place_of_class(const char *root, const char *class, const char *name, struct ofi_place *place_p) {
  char link[96];
  forget(place_p);
  if (!name || !name[0] || strchr(name, '/')) return false;
  return snprintf(link, sizeof link, "class/%s/%s", class, name) < (int)sizeof link &&
         place_of_link(root, link, place_p);
}

void zps_ofi_place_of_interface(const char *root, const char *name, struct ofi_place *place_p) {
  (void)place_of_class(root, "net", name, place_p);
}

void zps_ofi_place_of_card(const char *root, const struct fi_info *info, struct ofi_place *place_p) {
  const struct fid_nic *const nic = info->nic;
  if (nic && nic->bus_attr && nic->bus_attr->bus_type == FI_BUS_PCI) {
    const struct fi_pci_attr *const pci = &nic->bus_attr->attr.pci;
    char address[32];
    snprintf(address, sizeof address, "%x:%x:%x.%x", pci->domain_id, pci->bus_id, pci->device_id, pci->function_id);
    zps_ofi_place_of_pci(root, address, place_p);
    return;
  }
  static const char *const classes[] = {"net", "infiniband", "cxi"};
  const char *const name = info->domain_attr ? info->domain_attr->name : NULL;
  for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
    if (place_of_class(root, classes[i], name, place_p)) return;
}

/* "0-3,8": false when it is no list of processors. */
static bool parse_cpus(const char *list, cpu_set_t *cpus_p) {
  CPU_ZERO(cpus_p);
  while (isdigit((unsigned char)*list)) {
    char *end;
    const unsigned long first = strtoul(list, &end, 10);
    const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
    for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, cpus_p);
    list = *end == ',' ? end + 1 : end;
  }
  return *list == '\0';
}

void zps_ofi_place_of_cpus(const char *root, const cpu_set_t *cpus, struct ofi_place *place_p) {
  char path[PATH_MAX], list[4096];
  cpu_set_t of_node, both;
  int node;
  forget(place_p);
  if (snprintf(path, sizeof path, "%s/sys/devices/system/node", root) >= (int)sizeof path) return;
  DIR *const nodes = opendir(path);
  if (!nodes) return;
  for (const struct dirent *entry; place_p->node < 0 && (entry = readdir(nodes));) {
    if (sscanf(entry->d_name, "node%d", &node) != 1) continue;
    if (snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node) >= (int)sizeof path ||
        !read_line(path, list, sizeof list) || !parse_cpus(list, &of_node))
      continue;
    CPU_AND(&both, cpus, &of_node);
    if (CPU_COUNT(&both) > 0 && CPU_EQUAL(&both, cpus)) place_p->node = node;
  }
  closedir(nodes);
}

const char *zps_ofi_place_text(const struct ofi_place *place, char *text, size_t size) {
  char node[24] = "";
  if (place->node >= 0) snprintf(node, sizeof node, "NUMA node %d", place->node);
  snprintf(text, size, "%s%s%s%s", place->pci[0] ? "PCI " : "", place->pci, place->pci[0] && node[0] ? ", " : "", node);
  return text;
}

static unsigned count_parts(const char *path) {
  unsigned n = path[0] != '\0';
  for (; *path; path++) n += *path == '/';
  return n;
}

/* The leading parts that both paths have. */
static unsigned count_common(const char *a, const char *b) {
  unsigned n = 0;
  while (*a && *b) {
    const size_t len = strcspn(a, "/");
    if (len != strcspn(b, "/") || memcmp(a, b, len) != 0) break;
    n++;
    a += len + (a[len] == '/');
    b += len + (b[len] == '/');
  }
  return n;
}

unsigned zps_ofi_distance(const struct ofi_place *from, const struct ofi_place *card) {
  const unsigned common = count_common(from->path, card->path); /* the first one is the host bridge */
  if (common >= 2) return count_parts(from->path) + count_parts(card->path) - 2 * common;
  if (common == 1) return AT_HOST_BRIDGE;
  return from->node >= 0 && from->node == card->node ? ON_NODE : ELSEWHERE;
}

/* Each n numbers from a multiple of n on take n cards. So do numbers that are n^k apart, as those of the processes of
 * one NUMA node may be. */
static size_t turn_of(unsigned number, size_t n) {
  size_t sum = 0;
  for (size_t rest = number; n > 1 && rest > 0; rest /= n) sum += rest % n;
  return n > 1 ? sum % n : 0;
}

/* How many cards come before card i: the nearer ones, and some of its distance. These begin with index `from`, go
 * round, and then leave the first `turn` for the end. */
static size_t place_of(const unsigned *distances, size_t n, size_t from, size_t turn, size_t i) {
  size_t nearer = 0, equal = 0, before = 0;
  for (size_t k = 0; k < n; k++) {
    nearer += distances[k] < distances[i];
    if (distances[k] != distances[i]) continue;
    equal++;
    before += (k + n - from) % n < (i + n - from) % n;
  }
  return nearer + (before + equal - turn % equal) % equal;
}

size_t zps_ofi_deal(const unsigned *distances, size_t n, unsigned number, unsigned rails, unsigned rail,
                    size_t *n_nearest_p) {
  const size_t each = rails > 1 ? rails : 1;
  unsigned least = UINT_MAX;
  size_t n_nearest = 0, last = 0, i = 0;
  for (size_t k = 0; k < n; k++) {
    if (distances[k] < least) n_nearest = 0;
    if (distances[k] < least) least = distances[k];
    n_nearest += distances[k] == least;
    if (distances[k] == least) last = k;
  }
  *n_nearest_p = n_nearest;
  const size_t wanted = (each <= n_nearest ? turn_of(number, n_nearest / each) * each : 0) + rail;
  /* Beyond the nearest cards come those of the next indices, so processes with other nearest ones take others. Of the
   * processes with the same n nearest ones, n neighbours take turns. Any more of them take the same cards again, though
   * others may be free: their number among these processes is not known. */
  const size_t turn = each > n_nearest ? turn_of(number, n_nearest) * (each - n_nearest) : 0;
  for (; i < n; i++) {
    const bool is_nearest = distances[i] == least;
    if (place_of(distances, n, is_nearest ? 0 : last + 1, is_nearest ? 0 : turn, i) == wanted) break;
  }
  return i;
}
