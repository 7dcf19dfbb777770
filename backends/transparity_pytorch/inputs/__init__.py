"""What a stack reads: tokens, patches of images or frames of audio; the table chooses."""
