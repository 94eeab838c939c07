"""N environments stepped together: in this process, in workers, or as one batched simulator."""
