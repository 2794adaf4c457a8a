"""A process tree held by a lease: everything that ``leasekeeper run`` starts, and the guardian that keeps it in hand.

Words of this package: the **command** is the process of ``leasekeeper run``. The **program** is what it was asked to run. The
**tree** is the program and every process that comes from it, however it forked, detached itself or changed its session.

::

    command ──────────── sentinel ──────────── guardian ──────────── program ── …
    talks to etcd        own session           own process group     own process group
    (`control`)          (`sentinel`)          (`guardian`)          (`launch`)

- The **guardian** starts the program, and freezes, continues and kills the tree. It is told until when there is authority
  and acts on its own clock when nothing newer comes, so a command that is stopped or stuck cannot let work run on.
- The **sentinel** does nothing but wait for the guardian, wake it when somebody stops it, and kill what it leaves behind.
- All three are *child subreapers*: a process of the tree whose parent dies is given to the nearest of them that lives, so the
  tree can always be found by walking down from any of them.

What dies with what (Linux): command killed → the guardian sees its control socket end and kills the tree. Guardian killed →
the program is killed by the kernel (PDEATHSIG), the rest by the sentinel. Sentinel killed → nothing changes. Any two of the
three killed in one instant → the third kills the tree. **Not covered**: all three killed in one instant (the program still
dies with the guardian, but descendants of it that left its session live on); processes that an outside service starts on
request (systemd-run, at, a container engine), since they never were descendants; processes that run as a user whom we may
not signal. When the whole machine or container is paused from outside, all three stand still with the tree and resume
together with it: only the fence at the resource covers that.

Where there is no /proc and no subreaper (macOS, BSD), or where /proc is that of another pid namespace, the tree is the program's
process group: a descendant that leaves the group escapes, and of the three processes only one may die.

Nothing here imports more of leasekeeper than its clock, and nothing outside the standard library: the guardian is up in a
few hundredths of a second and shares no fate with grpc. Importing this package alone imports nothing at all.
"""
