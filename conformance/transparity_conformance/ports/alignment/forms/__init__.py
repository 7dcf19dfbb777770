"""Forms in which a port holds a tap: spread over the turns of a loop, or masked before it is scaled."""
