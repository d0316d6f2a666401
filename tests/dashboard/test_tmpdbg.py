from tests.dashboard.test_terminal import *
import time
def test_dbg(terminal):
    terminal.resize(120,40)
    time.sleep(1)
    st=open(f"/proc/{terminal.pid}/status").read()
    print([l for l in st.splitlines() if l.startswith("Sig") or l.startswith("Shd")])
    print(open(f"/proc/{terminal.pid}/environ").read().replace("\0","\n"))
    terminal.until(b"MEMORY",3)
