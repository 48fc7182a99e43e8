/*
 * The place of cards, GPUs and processors in a host, and the card that a process takes: the nearest one. Processes of a
 * host share cards of the same distance out among themselves.
 *
 * The kernel tells the places: the PCI bridges above a device, and its NUMA node. `root` is put in front of /sys, for
 * tests; "" is this host.
 */
#ifndef ZPS_NET_OFI_AFFINITY_H
#define ZPS_NET_OFI_AFFINITY_H

#include <rdma/fabric.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

struct ofi_place {
  char pci[20];   /* "0000:86:00.0"; "": not known */
  char path[192]; /* its bridges and itself: "pci0000:80/0000:80:01.0/0000:86:00.0" */
  int node;       /* of NUMA; -1: not known */
};

void zps_ofi_place_of_card(const char *root, const struct fi_info *info, struct ofi_place *place_p);
/* Of a network interface. */
void zps_ofi_place_of_interface(const char *root, const char *name, struct ofi_place *place_p);
/* By the address of a PCI device, in any notation that the kernel or CUDA has for it. */
void zps_ofi_place_of_pci(const char *root, const char *address, struct ofi_place *place_p);
/* The node that has all of these processors. */
void zps_ofi_place_of_cpus(const char *root, const cpu_set_t *cpus, struct ofi_place *place_p);
/* "PCI 0000:86:00.0, NUMA node 1", as far as it is known. Returns `text`. */
const char *zps_ofi_place_text(const struct ofi_place *place, char *text, size_t size);

/* Smaller is nearer: below one PCI bridge, at one host bridge, on one node, anything else. */
unsigned zps_ofi_distance(const struct ofi_place *from, const struct ofi_place *card);
/* The index of the card that process `number` of the host takes as its `rail` of `rails` (0: one); n: there are fewer.
 * *n_nearest_p: the cards of the least distance. */
size_t zps_ofi_deal(const unsigned *distances, size_t n, unsigned number, unsigned rails, unsigned rail,
                    size_t *n_nearest_p);

#endif
