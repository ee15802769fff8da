; Multiplies 8 rows of activations (at 0) by 16 rows of weights (at 0x1000), 8 numbers each; results go to 0x2000.
const ROWS=8 K=8 TILES=4 CHUNKS=K//LANES
const TILE=LANES*CHUNKS*WORD            ; bytes of a tile of weights
const LINE=TILES*2*WORD                 ; bytes of a row of results, FP32
sem   ready free full                   ; X is loaded; a half of W is free; a half is filled
reg   weights=r1 results=r2

      set  to=weights imm=0x1000
      set  to=results imm=0x2000
      sync signal=free                  ; two halves
      sync signal=free
      load target=X rows=ROWS words=CHUNKS signal=ready
      sync wait=ready
      loop count=TILES//2
        load target=W base=weights rows=LANES words=CHUNKS wait=free signal=full
        load target=W base=weights addr=TILE rows=LANES words=CHUNKS to=CHUNKS wait=free signal=full
        mul  rows=ROWS chunks=CHUNKS wait=full signal=free
        mul  rows=ROWS chunks=CHUNKS w=CHUNKS wait=full signal=free
        vector a=STREAM wide=1 words=ROWS write=C          ; a word a row
        vector v_op=STORE format=WIDE words=ROWS
        store base=results rows=ROWS wide=1 stride=LINE
        vector a=STREAM wide=1 words=ROWS write=C
        vector v_op=STORE format=WIDE words=ROWS
        store base=results addr=2*WORD rows=ROWS wide=1 stride=LINE
        add  to=weights a=weights imm=2*TILE
        add  to=results a=results imm=4*WORD
      end
      halt
