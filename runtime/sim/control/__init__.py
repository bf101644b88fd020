"""Control of one simulator: session, supervision, liveness, control socket."""
