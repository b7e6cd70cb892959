"""The level-triggered loop: observe -> plan -> act -> report, in files of these names. Where to look for what:

loop        one pass after another, and what wakes it; read it first

observe     what there is now: scanning (whether it must be read anew), processes, containers, attribution (whose
            process is on which NPU), settling (NPUs of those who own CPUs); survey for a single look, irq_check for
            where interrupts are then
events      what the kernel tells between two passes: stream, suspects (who may have opened an NPU), placing (puts one
            thread in place at once), watchlist (whose threads those may be); news and hearing are the loop's side of it

plan        what is asked for (asked) and what was planned before, for `agent.planning`

act         the threads of workers: drift (who undoes what was bound), backoff
steps       all else that is done to a host, in its order: interrupts with vectors, pci_addresses and balance
            (irqbalance), memory, uvb, confine and confinement (helpers of a pod)
undo        takes it back: bindings (what was done to a worker), restore (the command), journal and journal_file (what
            of it outlives the agent)

report      the plan's status: conditions, happenings (events), logbook (the log), publication (what stands, and who is
            told), store and statefile (where it goes)
tally       what was done, counted, with timings; exposed reads it, and the host, when somebody asks for metrics
"""
