//! Buffers of the arena that live at once must not overlap: the verifier against a look at every pair.

use oxyfuel_base::{Arena, Code, Expr};
use oxyfuel_plan::{Buffer, BufferHome, BufferId, Plan, verify};

/// Offset, bytes, first and last step.
type Place = (i64, i64, u32, u32);

fn plan(places: &[Place]) -> Plan {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    for &(offset, bytes, first_step, last_step) in places {
        buffers.push(Buffer {
            name: String::new(),
            home: BufferHome::Arena {
                offset: Expr::constant(offset),
            },
            bytes: Expr::constant(bytes),
            align: 1,
            first_step,
            last_step,
            tensor: None,
        });
    }
    Plan {
        name: "f".to_owned(),
        isa: "interpreter".to_owned(),
        symbols: vec![],
        limits: vec![],
        inputs: vec![],
        outputs: vec![],
        buffers,
        arena_bytes: Expr::constant(1 << 20),
        kernels: Arena::new(),
        steps: vec![],
    }
}

fn any_pair(places: &[Place]) -> bool {
    places.iter().enumerate().any(|(i, a)| {
        places[..i].iter().any(|b| {
            let together = a.2 <= b.3 && b.2 <= a.3;
            together && a.0 < b.0 + b.1 && b.0 < a.0 + a.1
        })
    })
}

#[test]
fn every_overlap_is_found_and_nothing_else() {
    let mut state = 1u64;
    let mut throw = |sides: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % sides
    };
    let mut refused = 0;
    for round in 0..2000 {
        let count = 2 + throw(5);
        let place = |throw: &mut dyn FnMut(u64) -> u64| {
            let first = throw(6) as u32;
            let (offset, bytes) = (throw(8) as i64 * 4, throw(3) as i64 * 4);
            (offset, bytes, first, first + throw(3) as u32)
        };
        let places: Vec<Place> = (0..count).map(|_| place(&mut throw)).collect();
        let made = verify(&plan(&places));
        assert_eq!(
            made.is_err(),
            any_pair(&places),
            "round {round}: {places:?}"
        );
        if let Err(error) = made {
            assert_eq!(error.code, Code::InvalidPlan);
            refused += 1;
        }
    }
    assert!((200..1800).contains(&refused), "{refused}");
}
