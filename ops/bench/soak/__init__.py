"""``decibatch bench soak``: very many waiting jobs, what they cost, and whether everything is given back."""
