"""Exchange weights, inputs and answers with programs and machines by files."""
