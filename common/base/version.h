/* Version of the control plane (proto/PROTOCOL.md), raised with every change that an older peer would misread. `hello`
 * refuses any other. Frames have a version of their own, and each carries it. */
#ifndef ZPS_BASE_VERSION_H
#define ZPS_BASE_VERSION_H

#ifndef ZPS_PROTOCOL_VERSION /* tests build a daemon of another one */
#define ZPS_PROTOCOL_VERSION 12u
#endif

#endif
