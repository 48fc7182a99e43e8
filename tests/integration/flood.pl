# Clients that ask more of a coordinator than is good for it.
#   flood.pl HOST:PORT stats N   N connections, each with 300 calls of `stats` under way, until it is killed
#   flood.pl HOST:PORT jobs      joins a job of one rank that is not there, and drops it, again and again, until it is killed
# On standard output: a line for each 100 answers, or 5 jobs.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;
my ($address, $what, $n) = @ARGV;
$| = 1;
my $done = 0;
sub count { print "$done\n" if ++$done % ($what eq 'stats' ? 100 : 5) == 0 }
sub connected {
  my ($role) = @_;
  my $socket = IO::Socket::INET->new(PeerAddr => $address) or die "cannot connect to $address: $!\n";
  syswrite $socket, qq({"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":12,"version":"test","role":"$role"}}\n);
  sysread $socket, my $hello, 4096 or die "no answer to hello\n";
  return $socket;
}
my $stats = qq({"jsonrpc":"2.0","id":2,"method":"stats","params":{}}\n);
my $fabric = '{"provider":"net","protocol":"FI_PROTO_XNET","addr_format":"FI_SOCKADDR_IN","domain":"lo","address":"020000017f0000010000000000000000","printable":"x"}';
if ($what eq 'stats') {
  my $select = IO::Select->new(map { connected('ctl') } 1 .. $n);
  syswrite $_, $stats x 300 for $select->handles;
  while (my @ready = $select->can_read) {
    for my $socket (@ready) {
      sysread $socket, my $lines, 1 << 20 or die "a connection was closed\n";
      my $answers = $lines =~ tr/\n//;
      count() for 1 .. $answers;
      syswrite $socket, $stats x $answers;
    }
  }
}
while ($what eq 'jobs') {
  my $socket = connected('worker');
  my $job = "dropped-" . $done % 50;
  syswrite $socket, qq({"jsonrpc":"2.0","id":2,"method":"job.join","params":{"job":"$job","world":1,"rank":0,"host":"h","pid":1,"timeout_ms":10000,"fabric":$fabric}}\n);
  sysread $socket, my $answer, 4096 or die "the connection was closed\n"; # its answer, or the first heartbeat
  close $socket;
  count();
}
