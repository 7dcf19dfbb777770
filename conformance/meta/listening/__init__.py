"""What listening costs."""
