"""What is done: every stage is a plain function over the typed contract in `stages.contract`."""

import os

# Torch's threads wait for each other after every product. Waiting idly instead of spinning costs nothing on a quiet
# machine; where anything else wants a core, spinning made the same work 8 to 20 times slower. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
